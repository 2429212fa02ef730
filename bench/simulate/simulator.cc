#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <future>
#include <map>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "bench/simulate/simulate.h"
#include "services/cli/command_line.h"
#include "services/cli/version.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

constexpr char kSimulateExamples[] =
    R"(  hearth-simulate --trace conversation_trace.jsonl.xz
  hearth-simulate --trace t.jsonl --capacity 0.01,0.05,0.1 --policy default,lru --json
  hearth-simulate --trace t.jsonl --model 4b --svg hit_rates.svg
  hearth-simulate --trace t.jsonl --nodes 10 --routing random --capacity 0.05,0.1

A trace has one JSON object per line, ascending in time (the format of Mooncake's traces):
  {"timestamp": 27482, "input_length": 1100, "output_length": 52, "hash_ids": [46, 47, 2366]}
timestamp in ms, lengths in tokens, one id for each block of 512 tokens of the prompt. Two blocks
are equal if their ids and all ids before them are equal.

Without --model a cache keeps or drops each block by itself, and its size is a share of the trace's
unique blocks. The hit rate is the share of all blocks that are found without a gap from the start
of their prompt. With --model the cache keeps restore points as a store does for that Gemma 3. Its
size is a share of the bytes of all full blocks with every layer, and the hit rate is the share of
all tokens that are restored.

With --nodes N it simulates a fleet of stores that share one engine, Redis with volatile-ttl. The
size of the engine is --capacity, or --shared-bytes for blocks of --model. Each block is kept by
itself. The output also has the hit rates of one store of that size, with lru and with default.

Policies: default, the default --retention of a store; lru, evicts the least recently used first;
optimum, knows the future (with --model: Belady's rule on restore points).
)";

struct SimulateFlags {
  std::string trace, svg;
  const ModelShape* model = nullptr;
  std::vector<double> capacities = {0.01, 0.05, 0.1, 0.25, 0.5};
  std::vector<std::string> policies = {"default", "lru", "optimum"};
  bool json = false;
  // Flags for simulating several stores that share one engine.
  uint32_t nodes = 0;
  bool affinity = false;
  uint64_t shared_bytes = 0;  // 0: use the values of --capacity
  double node_share = 0;

  bool is_of_fleet() const { return nodes > 0 || shared_bytes > 0 || node_share > 0; }
};

// Hit rates by policy and capacity.
using Rates = std::map<SimulatedPolicy, std::map<double, double>>;

// Computes all hit rates, using all processor cores. Prints its progress if it takes long.
void Simulate(const Trace& trace, const ModelShape* model, Rates* rates, Console& console) {
  std::vector<std::function<void()>> runs;
  for (auto& [policy, curve] : *rates) {
    for (auto& [capacity, rate] : curve) {
      runs.push_back([&, policy = policy, capacity = capacity, rate = &rate] {
        *rate = HitRate(trace, model, policy, capacity);
      });
    }
  }
  std::atomic<size_t> next{0}, done{0};
  std::vector<std::future<void>> workers;
  for (size_t i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    workers.push_back(std::async(std::launch::async, [&] {
      for (size_t at = next++; at < runs.size(); at = next++, ++done) runs[at]();
    }));
  }
  for (std::future<void>& worker : workers) {
    while (worker.wait_for(std::chrono::seconds(5)) != std::future_status::ready) {
      console.err << "hearth-simulate: " << done << " of " << runs.size() << " runs done"
                  << std::endl;
    }
  }
}

double Rounded(double rate) { return std::round(rate * 1e6) / 1e6; }

// Prints a row with the hit rates for each policy and capacity.
void Print(const Rates& rates, const std::vector<SimulatedPolicy>& policies,
           const SimulateFlags& flags, Console& console) {
  const std::set<SimulatedPolicy> shown(policies.begin(), policies.end());
  const bool has_gap = shown.size() == 3;
  if (!flags.json) {
    console.out << "  policy    capacity   hit rate"
                << (has_gap ? "   gap from lru to optimum closed\n" : "\n");
  }
  for (const SimulatedPolicy policy : policies) {
    for (const double capacity : flags.capacities) {
      const double rate = rates.at(policy).at(capacity);
      if (flags.json) {
        Json json{
            {"policy", PolicyName(policy)}, {"capacity", capacity}, {"hit_rate", Rounded(rate)}};
        if (flags.model != nullptr) json["model"] = flags.model->name;
        console.out << Raw{JsonLine(json) + "\n"};
        continue;
      }
      std::string closed;
      if (has_gap && policy == SimulatedPolicy::kDefault) {
        const double lru = rates.at(SimulatedPolicy::kLru).at(capacity);
        const double gap = rates.at(SimulatedPolicy::kOptimum).at(capacity) - lru;
        if (gap > 5e-4) closed = absl::StrFormat("   %5.0f %%", 100 * (rate - lru) / gap);
      }
      console.out << absl::StrFormat("  %-8s  %6.4g %%     %.4f%s\n", PolicyName(policy),
                                     capacity * 100, rate, closed);
    }
  }
  console.out << std::flush;
}

std::string WithThousands(uint64_t number) {
  std::string text = absl::StrCat(number);
  for (int i = static_cast<int>(text.size()) - 3; i > 0; i -= 3) text.insert(i, ",");
  return text;
}

// Returns the description of the trace, such as "trace.jsonl: 10 requests, 20 unique blocks of 512
// tokens".
std::string Subject(const SimulateFlags& flags, const Trace& trace) {
  return absl::StrCat(flags.trace.substr(flags.trace.find_last_of('/') + 1), ": ",
                      WithThousands(trace.requests.size()), " requests, ",
                      WithThousands(trace.unique_blocks), " unique blocks of 512 tokens");
}

constexpr double kWidth = 940, kHeight = 560;
constexpr double kLeft = 76, kRight = 908, kTop = 132, kBottom = 470;

constexpr char kStyle[] = R"(
  .page { fill: #ffffff } .ink { fill: #1d2430 } .soft { fill: #667085 }
  .grid { stroke: #e4e7ec } .axis { stroke: #98a2b3 }
  .curve { fill: none; stroke-linejoin: round; stroke-linecap: round }
  .default { stroke: #e8590c; stroke-width: 3.5 } .default-fill { fill: #e8590c }
  .lru { stroke: #667085; stroke-width: 2.5 } .lru-fill { fill: #667085 }
  .optimum { stroke: #1d2430; stroke-width: 2; stroke-dasharray: 2 6 }
  .optimum-fill { fill: #1d2430 }
  .value { paint-order: stroke; stroke: #ffffff; stroke-width: 4 }
  text { font-family: system-ui, "Segoe UI", Helvetica, Arial, sans-serif }
  @media (prefers-color-scheme: dark) {
    .page { fill: #14181f } .ink { fill: #eceff4 } .soft { fill: #9aa4b2 }
    .value { stroke: #14181f } .grid { stroke: #2b323d } .axis { stroke: #667085 }
    .lru { stroke: #9aa4b2 } .lru-fill { fill: #9aa4b2 }
    .optimum { stroke: #eceff4 } .optimum-fill { fill: #eceff4 }
  }
)";

std::string Number(double value) { return absl::StrFormat("%.1f", value); }

// Returns a fraction as text, such as "1 %" or "2.5 %".
std::string Percent(double share) {
  return absl::StrFormat("%.4g %%", std::round(share * 1e5) / 1e3);
}

std::string Text(double x, double y, const std::string& content, const std::string& kind,
                 double size, const char* anchor = "start", int weight = 400) {
  const std::string escaped =
      absl::StrReplaceAll(content, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  return absl::StrCat("<text x=\"", Number(x), "\" y=\"", Number(y), "\" class=\"", kind,
                      "\" font-size=\"", size, "\" font-weight=\"", weight, "\" text-anchor=\"",
                      anchor, "\">", escaped, "</text>\n");
}

std::string Stroke(double x1, double y1, double x2, double y2, const char* kind) {
  return absl::StrCat("<line x1=\"", Number(x1), "\" y1=\"", Number(y1), "\" x2=\"", Number(x2),
                      "\" y2=\"", Number(y2), "\" class=\"", kind, "\"/>\n");
}

// Draws the hit rate against the capacity as an SVG picture, with one curve for each policy and a
// logarithmic capacity axis.
class Picture {
 public:
  // REQUIRES: all curves have the same capacities.
  Picture(const Rates& curves, const Trace& trace, const SimulateFlags& flags)
      : curves_(curves), trace_(trace), flags_(flags) {
    double highest = 0;
    for (const auto& [policy, curve] : curves) {
      for (const auto& [capacity, rate] : curve) highest = std::max(highest, rate);
    }
    for (const double step : {0.01, 0.02, 0.05, 0.1, 0.2}) {
      step_ = step;
      if (highest <= 6 * step) break;
    }
    top_ = step_ * std::max(1.0, std::ceil(highest / step_ - 1e-9));
  }

  std::string Draw() const {
    std::string svg = absl::StrCat(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", kWidth, " ", kHeight,
        "\" width=\"", kWidth, "\" height=\"", kHeight, "\" role=\"img\">\n<title>Hit rate ",
        "against capacity</title>\n<style>", kStyle, "</style>\n<rect class=\"page\" width=\"",
        kWidth, "\" height=\"", kHeight, "\" rx=\"12\"/>\n");
    svg += Text(32, 46, "Hit rate against capacity", "ink", 22, "start", 650);
    const std::string kept = flags_.model == nullptr
                                 ? ", each kept by itself"
                                 : absl::StrCat(", restore points of Gemma 3 ",
                                                absl::AsciiStrToUpper(flags_.model->name));
    svg += Text(32, 72, Subject(flags_, trace_) + kept, "soft", 14);
    svg += Axes();
    // Draw the store's default policy last, so that its curve is on top.
    for (const auto& [policy, at] : {std::pair(SimulatedPolicy::kLru, 1),
                                     {SimulatedPolicy::kOptimum, 2},
                                     {SimulatedPolicy::kDefault, 0}}) {
      if (curves_.count(policy) > 0) svg += Curve(policy, at);
    }
    return svg + "</svg>\n";
  }

 private:
  double X(double capacity) const {
    const double least = flags_.capacities.front(), most = flags_.capacities.back();
    if (most <= least) return (kLeft + kRight) / 2;
    const double share = std::log(capacity / least) / std::log(most / least);
    return kLeft + 28 + share * (kRight - kLeft - 56);
  }
  double Y(double rate) const { return kBottom - rate / top_ * (kBottom - kTop); }

  std::string Axes() const {
    std::string svg;
    for (double rate = 0; rate <= top_ + 1e-9; rate += step_) {
      svg += Stroke(kLeft, Y(rate), kRight, Y(rate), rate == 0 ? "axis" : "grid");
      svg += Text(kLeft - 12, Y(rate) + 4.5, Percent(rate), "soft", 13, "end");
    }
    double last = -1e9;
    for (const auto& [capacity, rate] : curves_.begin()->second) {
      const double x = X(capacity);
      svg += Stroke(x, kBottom, x, kBottom + 6, "axis");
      // Leave out a label that is too close to the label before.
      if (x - last >= 44) svg += Text(x, kBottom + 24, Percent(capacity), "soft", 13, "middle");
      last = x;
    }
    const bool points = flags_.model != nullptr;
    svg += Text((kLeft + kRight) / 2, kBottom + 54,
                points ? "capacity, as a share of all blocks' bytes with every layer"
                       : "capacity, as a share of the unique blocks",
                "ink", 14, "middle");
    return svg + Text(kLeft, kTop - 18, points ? "tokens restored" : "blocks found", "ink", 14);
  }

  std::string Curve(SimulatedPolicy policy, int name_at) const {
    const bool is_ours = policy == SimulatedPolicy::kDefault;
    const std::string fill = absl::StrCat(PolicyName(policy), "-fill");
    std::string path, dots, values;
    for (const auto& [capacity, rate] : curves_.at(policy)) {
      const double x = X(capacity), y = Y(rate);
      absl::StrAppend(&path, path.empty() ? "M" : "L", Number(x), " ", Number(y), " ");
      absl::StrAppend(&dots, "<circle cx=\"", Number(x), "\" cy=\"", Number(y), "\" r=\"",
                      is_ours ? "4.5" : "3.5", "\" class=\"", fill, "\"/>\n");
      if (is_ours) values += Text(x, y - 12, Number(rate * 100), "ink value", 12.5, "middle", 600);
    }
    const char* const name = is_ours                           ? "Hearth"
                             : policy == SimulatedPolicy::kLru ? "LRU"
                             : flags_.model == nullptr         ? "offline optimum"
                                                               : "future known";
    return absl::StrCat(
        "<path d=\"", path, "\" class=\"curve ", PolicyName(policy), "\"/>\n", dots, values,
        Text(kRight - 290.0 + 90 * name_at, kTop - 18, name, fill, 14, "start", 600));
  }

  const Rates& curves_;
  const Trace& trace_;
  const SimulateFlags& flags_;
  double step_ = 0.1, top_ = 1;
};

// Prints the hit rates for each size of the engine, given as a fraction of the trace's different
// blocks. Compares them with one store of that size.
int RunFleet(const SimulateFlags& flags, Console& console) {
  if (flags.nodes == 0) return FailUsage(console, "--shared-bytes and --node-share need --nodes");
  if (flags.shared_bytes > 0 && flags.model == nullptr) {
    return FailUsage(console, "--shared-bytes needs --model, which sets the bytes of a block");
  }
  const absl::StatusOr<Trace> trace = ReadTraceFile(flags.trace);
  if (!trace.ok()) return Fail(console, trace.status());
  std::vector<double> capacities = flags.capacities;
  if (flags.shared_bytes > 0) {
    const double block = static_cast<double>(flags.model->TokenBytes()) * Trace::kBlockTokens;
    capacities = {std::min(
        1.0, static_cast<double>(flags.shared_bytes) / block / std::max(1u, trace->unique_blocks))};
  }
  FleetShape shape;
  shape.nodes = flags.nodes;
  shape.affinity = flags.affinity;
  const char* const routing = flags.affinity ? "affinity" : "random";
  if (!flags.json) {
    console.out << shape.nodes << " stores, " << routing << " routing, one engine\n"
                << "  capacity   hit rate   shared   one lru store   one learnt store\n";
  }
  for (const double capacity : capacities) {
    shape.shared_blocks = static_cast<uint64_t>(capacity * trace->unique_blocks);
    shape.node_blocks =
        static_cast<uint64_t>(flags.node_share * static_cast<double>(shape.shared_blocks));
    const auto [found, shared] = SimulateFleet(*trace, shape);
    const double lru = HitRate(*trace, nullptr, SimulatedPolicy::kLru, capacity);
    const double learnt = HitRate(*trace, nullptr, SimulatedPolicy::kDefault, capacity);
    const Json json{{"nodes", shape.nodes},         {"routing", routing},
                    {"capacity", capacity},         {"node_share", flags.node_share},
                    {"hit_rate", Rounded(found)},   {"shared_hit_rate", Rounded(shared)},
                    {"lru_hit_rate", Rounded(lru)}, {"default_hit_rate", Rounded(learnt)}};
    const std::string text = absl::StrFormat(
        "  %6.4g %%     %.4f   %.4f   %.4f (%.2f)   %.4f (%.2f)", capacity * 100, found, shared,
        lru, lru > 0 ? found / lru : 0, learnt, learnt > 0 ? found / learnt : 0);
    console.out << Raw{(flags.json ? JsonLine(json) : text) + "\n"} << std::flush;
  }
  return kExitOk;
}

int RunSimulate(SimulateFlags flags, Console& console) {
  absl::c_sort(flags.capacities);
  std::vector<SimulatedPolicy> policies;
  for (const std::string& name : flags.policies) {
    auto policy = ParsePolicy(name);
    if (!policy.ok()) return FailUsage(console, absl::StrCat("--", policy.status().message()));
    policies.push_back(*policy);
    for (const double capacity : flags.capacities) {
      if (capacity > 0 && capacity <= 1) continue;
      return FailUsage(console,
                       absl::StrCat("--capacity ", capacity, ": must be above 0 and at most 1"));
    }
  }
  if (flags.is_of_fleet()) {
    if (!flags.svg.empty()) return FailUsage(console, "--svg cannot be combined with --nodes");
    return RunFleet(flags, console);
  }
  const absl::StatusOr<Trace> trace = ReadTraceFile(flags.trace);
  if (!trace.ok()) return Fail(console, trace.status());
  std::set<SimulatedPolicy> drawn(policies.begin(), policies.end());
  // A picture always shows the policies lru and optimum.
  if (!flags.svg.empty()) drawn.insert({SimulatedPolicy::kLru, SimulatedPolicy::kOptimum});
  Rates rates;
  for (const SimulatedPolicy policy : drawn) {
    for (const double capacity : flags.capacities) rates[policy][capacity] = 0;
  }
  Simulate(*trace, flags.model, &rates, console);
  if (!flags.json) console.out << Subject(flags, *trace) << "\n";
  Print(rates, policies, flags, console);
  if (flags.svg.empty()) return kExitOk;
  std::ofstream file(flags.svg, std::ios::binary | std::ios::trunc);
  file << Picture(rates, *trace, flags).Draw();
  file.close();
  if (file.good()) return kExitOk;
  return Fail(console, absl::PermissionDeniedError(absl::StrCat(
                           "--svg ", flags.svg, ": cannot be written: ", std::strerror(errno))));
}

void Declare(CLI::App* command, SimulateFlags* flags) {
  command
      ->add_option("--trace", flags->trace,
                   "trace of requests, as JSON lines; may be xz-compressed")
      ->required()
      ->option_text("FILE");
  command
      ->add_option("--capacity", flags->capacities, "sizes of the cache, as shares: 0.01,0.05,0.1")
      ->delimiter(',')
      ->capture_default_str()
      ->option_text("SHARE,...");
  command->add_option("--policy", flags->policies, "eviction policies: default, lru, optimum")
      ->delimiter(',')
      ->option_text("NAME,...");
  std::map<std::string, int> models;
  for (const ModelShape& shape : kModelShapes) models.emplace(shape.name, models.size());
  AddChoice(
      command, "--model", models, [flags](int at) { flags->model = &kModelShapes[at]; },
      "keep restore points of this Gemma 3");
  command->add_option("--nodes", flags->nodes, "number of stores that share one engine")
      ->check(CLI::Range(1.0, 1000.0))
      ->option_text("N");
  AddChoice(
      command, "--routing", {{"random", 0}, {"affinity", 1}},
      [flags](int at) { flags->affinity = at == 1; },
      "how requests are routed to the stores; default random");
  command->add_option("--shared-bytes", flags->shared_bytes, "size of the engine; needs --model")
      ->option_text("BYTES");
  command
      ->add_option("--node-share", flags->node_share,
                   "memory of each store, as a share of the engine; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str()
      ->option_text("SHARE");
  command
      ->add_option("--svg", flags->svg,
                   "also draw hit rate against capacity, with lru and optimum for comparison")
      ->option_text("FILE");
  AddJson(command, &flags->json, " per policy and size");
}

}  // namespace

int RunSimulator(int argc, const char* const* argv, Console& outside) {
  SimulateFlags flags;
  return RunProgram(
      {"hearth-simulate",
       "Replays a trace of requests and prints the hit rate of caches of given sizes.",
       std::string("\nExamples:\n") + kSimulateExamples, kVersion},
      argc, argv, outside, [&flags](CLI::App* command) { Declare(command, &flags); },
      [&flags](Console& console) { return RunSimulate(flags, console); });
}

}  // namespace hearth
