// simulate: what a store would have kept of a trace's requests, without a server.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <future>
#include <optional>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache_store/simulate/simulate.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/commands/hit_rate_picture.h"
#include "services/hearthctl/commands/simulate_fleet.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr char kSimulateExamples[] =
    R"(  hearthctl simulate --trace conversation_trace.jsonl.xz
  hearthctl simulate --trace t.jsonl --capacity 0.01,0.05,0.1 --policy default,lru --json
  hearthctl simulate --trace t.jsonl --model 4b --svg hit_rates.svg
  hearthctl simulate --trace t.jsonl --nodes 10 --routing random --capacity 0.05,0.1

A trace has one JSON object a line, ascending in time, as Mooncake's traces have:
  {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2366]}
timestamp in ms, lengths in tokens, one id for each block of 512 tokens of the prompt. Equal ids
after equal ids are equal blocks.

Without --model a cache keeps or drops each block by itself, and its size is a share of the trace's
unique blocks; the hit rate is, of all blocks, those found from a prompt's start on without a gap.
With --model it keeps restore points as a store does for that Gemma 3; its size is a share of the
bytes that all full blocks would take with every layer, and the hit rate is tokens restored of all
tokens.

With --nodes N it is a fleet of stores that share one engine, Redis with volatile-ttl: --capacity is
then the engine's size, or --shared-bytes is, for blocks of --model; blocks are kept each by itself.
Shown beside it is what one store of that size would have found, by least recent use and as stores
learn.

Policies: default, what a store runs unless told otherwise (--retention); lru, the least recently
used goes first; optimum, which knows the future (with --model: Belady's rule on restore points).
)";

struct SimulateFlags {
  std::string trace, model, svg;
  std::vector<double> capacities = {0.01, 0.05, 0.1, 0.25, 0.5};
  std::vector<std::string> policies = {"default", "lru", "optimum"};
  FleetFlags fleet;
  bool json = false;
};

struct Row {
  SimulatedPolicy policy;
  double capacity = 0, hit_rate = 0;
};

// All rows, on as many threads as there are cores. Says how far it is when that takes long.
void Simulate(const Trace& trace, const std::optional<ModelShape>& model, std::vector<Row>* rows,
              Console& console) {
  std::atomic<size_t> next{0}, done{0};
  const auto work = [&] {
    for (size_t i = next++; i < rows->size(); i = next++) {
      Row& row = (*rows)[i];
      row.hit_rate = HitRate(trace, model, row.policy, row.capacity);
      ++done;
    }
  };
  std::vector<std::future<void>> workers;
  const size_t threads = std::max(1u, std::thread::hardware_concurrency());
  for (size_t i = 0; i < std::min(threads, rows->size()); ++i) {
    workers.push_back(std::async(std::launch::async, work));
  }
  for (std::future<void>& worker : workers) {
    while (worker.wait_for(std::chrono::seconds(5)) != std::future_status::ready) {
      console.err << "simulate: " << done << " of " << rows->size() << " runs done" << std::endl;
    }
  }
}

double RateOf(const std::vector<Row>& rows, SimulatedPolicy policy, double capacity) {
  for (const Row& row : rows) {
    if (row.policy == policy && row.capacity == capacity) return row.hit_rate;
  }
  return NAN;
}

bool Has(const std::vector<Row>& rows, SimulatedPolicy policy) {
  return std::any_of(rows.begin(), rows.end(),
                     [policy](const Row& row) { return row.policy == policy; });
}

void PrintTable(const std::vector<Row>& rows, Console& console) {
  const bool has_gap = Has(rows, SimulatedPolicy::kDefault) && Has(rows, SimulatedPolicy::kLru) &&
                       Has(rows, SimulatedPolicy::kOptimum);
  console.out << "  policy    capacity   hit rate"
              << (has_gap ? "   gap from lru to optimum closed\n" : "\n");
  for (const Row& row : rows) {
    const double lru = RateOf(rows, SimulatedPolicy::kLru, row.capacity);
    const double optimum = RateOf(rows, SimulatedPolicy::kOptimum, row.capacity);
    std::string closed;
    if (row.policy == SimulatedPolicy::kDefault && optimum - lru > 5e-4) {
      closed = absl::StrFormat("   %5.0f %%", 100 * (row.hit_rate - lru) / (optimum - lru));
    }
    console.out << absl::StrFormat("  %-8s  %6.4g %%     %.4f%s\n", PolicyName(row.policy),
                                   row.capacity * 100, row.hit_rate, closed);
  }
  console.out << std::flush;
}

void PrintJson(const std::vector<Row>& rows, const SimulateFlags& flags, Console& console) {
  for (const Row& row : rows) {
    Json json{{"policy", PolicyName(row.policy)},
              {"capacity", row.capacity},
              {"hit_rate", std::round(row.hit_rate * 1e6) / 1e6}};
    if (!flags.model.empty()) json["model"] = flags.model;
    PrintJson(json, console);
  }
  console.out << std::flush;
}

std::string WithThousands(uint64_t number) {
  std::string text = absl::StrCat(number);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) text.insert(i, ",");
  return text;
}

std::string FileName(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

const char* LineName(SimulatedPolicy policy, bool restore_points) {
  switch (policy) {
    case SimulatedPolicy::kDefault:
      return "Hearth";
    case SimulatedPolicy::kLru:
      return "LRU";
    case SimulatedPolicy::kOptimum:
      return restore_points ? "future known" : "offline optimum";
  }
  return "";
}

absl::Status WritePicture(const std::vector<Row>& rows, const Trace& trace,
                          const SimulateFlags& flags) {
  HitRatePicture picture;
  picture.title = "Hit rate against capacity";
  picture.subtitle = absl::StrCat(
      FileName(flags.trace), ": ", WithThousands(trace.requests.size()), " requests, ",
      WithThousands(trace.unique_blocks), " unique blocks of 512 tokens",
      flags.model.empty()
          ? ", each kept by itself"
          : absl::StrCat(", restore points of Gemma 3 ", absl::AsciiStrToUpper(flags.model)));
  picture.capacity_label = flags.model.empty()
                               ? "capacity, as a share of the unique blocks"
                               : "capacity, as a share of all blocks' bytes with every layer";
  picture.rate_label = flags.model.empty() ? "blocks found" : "tokens restored";
  for (const Row& row : rows) {
    const std::string name = PolicyName(row.policy);
    auto line = std::find_if(picture.lines.begin(), picture.lines.end(),
                             [&](const HitRateLine& other) { return other.policy == name; });
    if (line == picture.lines.end())
      line = picture.lines.insert(
          line, HitRateLine{name, LineName(row.policy, !flags.model.empty()), {}});
    line->points.emplace_back(row.capacity, row.hit_rate);
  }
  std::ofstream file(flags.svg, std::ios::binary | std::ios::trunc);
  file << DrawHitRates(picture);
  file.close();
  if (file.good()) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("--svg ", flags.svg, ": cannot be written: ", std::strerror(errno)));
}

int RunSimulate(const SimulateFlags& flags, Console& console) {
  std::optional<ModelShape> model;
  if (!flags.model.empty()) {
    auto shape = ParseModelShape(flags.model);
    if (!shape.ok()) return FailUsage(console, absl::StrCat("--", shape.status().message()));
    model = *shape;
  }
  std::vector<double> capacities = flags.capacities;
  std::sort(capacities.begin(), capacities.end());
  std::vector<Row> rows;
  for (const std::string& name : flags.policies) {
    auto policy = ParsePolicy(name);
    if (!policy.ok()) return FailUsage(console, absl::StrCat("--", policy.status().message()));
    for (const double capacity : capacities) {
      if (!(capacity > 0 && capacity <= 1)) {
        return FailUsage(console, absl::StrCat("--capacity ", capacity,
                                               " must be a share, above 0 and at most 1"));
      }
      rows.push_back(Row{*policy, capacity});
    }
  }
  // A picture shows them beside whatever was asked for.
  const size_t asked = rows.size();
  for (const SimulatedPolicy policy : {SimulatedPolicy::kLru, SimulatedPolicy::kOptimum}) {
    if (flags.svg.empty() || Has(rows, policy)) continue;
    for (const double capacity : capacities) rows.push_back(Row{policy, capacity});
  }
  if (flags.fleet.is_given()) {
    if (!flags.svg.empty()) return FailUsage(console, "--svg: not of a fleet, --nodes");
    return RunFleet(flags.fleet, flags.trace, model, capacities, flags.json, console);
  }
  const absl::StatusOr<Trace> trace = ReadTraceFile(flags.trace);
  if (!trace.ok()) return Fail(console, trace.status());
  Simulate(*trace, model, &rows, console);
  const std::vector<Row> shown(rows.begin(), rows.begin() + static_cast<ptrdiff_t>(asked));
  if (flags.json) {
    PrintJson(shown, flags, console);
  } else {
    console.out << FileName(flags.trace) << ": " << WithThousands(trace->requests.size())
                << " requests, " << WithThousands(trace->unique_blocks)
                << " unique blocks of 512 tokens\n";
    PrintTable(shown, console);
  }
  if (flags.svg.empty()) return kExitOk;
  const absl::Status written = WritePicture(rows, *trace, flags);
  return written.ok() ? kExitOk : Fail(console, written);
}

}  // namespace

void AddSimulateCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<SimulateFlags>(
      "simulate", "Replay a trace: what a store of some size would have kept", kSimulateExamples,
      RunSimulate);
  command->Add("--trace", &flags->trace, "requests, as JSON lines; may be xz-compressed")
      .Required()
      .Placeholder("FILE");
  command->Add("--capacity", &flags->capacities, "sizes, as shares: 0.01,0.05,0.1")
      .SplitAtCommas()
      .ShowDefault()
      .Placeholder("SHARE,...");
  command->Add("--policy", &flags->policies, "default, lru, optimum")
      .SplitAtCommas()
      .Placeholder("NAME,...");
  command->Add("--model", &flags->model, "270m, 1b, 4b, 12b or 27b: restore points")
      .Placeholder("NAME");
  command->Add("--nodes", &flags->fleet.nodes, "a fleet of so many stores that share one engine")
      .Placeholder("N");
  command->Add("--routing", &flags->fleet.routing, "of a fleet's requests: random, affinity")
      .ShowDefault()
      .Placeholder("NAME");
  command->Add("--shared-bytes", &flags->fleet.shared_bytes, "the engine's size; needs --model")
      .Placeholder("BYTES");
  command
      ->Add("--node-share", &flags->fleet.node_share,
            "each store's own memory, as a share of the engine's; 0: none")
      .ShowDefault()
      .Placeholder("SHARE");
  command->Add("--svg", &flags->svg, "also draw hit rate against capacity, beside lru and optimum")
      .Placeholder("FILE");
  command->AddJson(&flags->json, " for each policy and size");
}

}  // namespace hearth
