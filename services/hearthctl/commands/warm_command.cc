#include <algorithm>
#include <cassert>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/cache_store.grpc.pb.h"
#include "proto/inference.grpc.pb.h"
#include "proto/restore_rule.h"
#include "services/cli/connection.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/progress_line.h"
#include "services/hearthctl/prompt_flags.h"
#include "services/hearthctl/warm_file.h"

namespace hearth {
namespace {

constexpr char kWarmExamples[] =
    R"(  hearthctl warm --file prompts.yaml
  hearthctl warm --file prompts.yaml --pin --store 127.0.0.1:7080 --min-coverage 0.9

  prompts:                             # prompts to keep in the store
    - name: handbook
      text_file: handbook.txt          # or text: "...", or token_ids: [2, 10, 11]
      breakpoints: [120]               # byte offsets for text, token positions for token_ids
  chats:
    - name: assistant
      messages:
        - role: system
          content: "You are brief."    # or a list of {text, cache_breakpoint}
          cache_breakpoint: true
      generation_prompt: false         # the last message is unfinished
      pin: true                        # needs --store
      ttl: 36h                         # time to live; else the store's default
      adapter: legal                   # adapter of the worker; else none

Computes prompts that are not stored, checks that they are stored now, and prints the coverage: the
share of the boundaries worth keeping that can be restored. A second run computes nothing. A pin
protects each of these boundaries. Exit code 1 if the coverage is below --min-coverage, nothing in
the file is worth keeping, or a prompt failed or cannot be pinned.
)";

struct WarmFlags {
  PeerFlags worker;
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  std::string file;
  double min_coverage = 1.0;
  bool pin = false;
  std::string ttl;
  KeepHint hint;
  bool json = false;
};

struct WarmResult {
  uint32_t prompt_tokens = 0;
  uint32_t computed_tokens = 0;  // 0 if everything was already stored
  std::vector<uint32_t> wanted;  // boundaries that the worker should store, ascending
  std::vector<uint32_t> stored;  // those of the wanted boundaries that can be restored now
  std::vector<uint32_t> pinned;  // those of the stored boundaries that are pinned
  std::string note;              // why wanted boundaries are not stored
  // Whether `wanted` was computed. May be true even if the prompt failed later.
  bool knows_wanted = false;
  // If pins were requested: which stored boundaries could not be pinned, and why.
  std::string pin_failure;

  bool complete() const { return stored.size() == wanted.size(); }
  bool all_pinned() const { return !pinned.empty() && pinned.size() == stored.size(); }
};

void AppendNote(const std::string& more, std::string* note) {
  if (!note->empty() && !more.empty()) *note += "; ";
  *note += more;
}

// REQUIRES: `boundaries` is sorted ascending.
bool Contains(const std::vector<uint32_t>& boundaries, uint32_t boundary) {
  return std::binary_search(boundaries.begin(), boundaries.end(), boundary);
}

// Returns why the highest wanted boundary that is not usable cannot be used; "" if all wanted
// boundaries are usable.
std::string WhyMissing(const v1::ExplainResponse& explained, const WarmResult& result) {
  std::string why;
  for (const v1::BoundaryInfo& boundary : explained.boundaries()) {
    if (!Contains(result.wanted, boundary.boundary()) || boundary.usable()) continue;
    why = absl::StrCat("boundary ", boundary.boundary(), ": ", boundary.reason());
  }
  return why;
}

// Warmer: makes a worker store prompts, one prompt at a time. Skips prompts that are already
// stored.
//
// KeptBoundaries, which the worker calls too, returns the boundaries that should be stored.
// Explain, called before and after a prefill, returns the boundaries that are stored. Thread
// safety: none. Ownership: borrows all constructor arguments.
class Warmer {
 public:
  // `store`: used to pin; null if no prompt is pinned. `console`: shows the progress.
  Warmer(const WarmFlags& flags, v1::Inference::Stub* worker, v1::CacheStore::Stub* store,
         uint32_t chunk_tokens, Console* console)
      : flags_(flags),
        worker_(worker),
        store_(store),
        chunk_tokens_(chunk_tokens),
        console_(console) {}

  // Sets the fields of `result` that are known even if a later step fails. It is not an error if a
  // stored boundary cannot be pinned: `result` names the boundary, and the other boundaries are
  // pinned.
  absl::Status Warm(const WarmEntry& entry, WarmResult* result) {
    absl::Status status = FindWanted(entry, result);
    if (!status.ok()) return status;
    if (result->wanted.empty()) {
      result->note = absl::StrCat("shorter than one chunk of ", chunk_tokens_,
                                  " tokens and without a breakpoint: nothing to keep");
      return absl::OkStatus();
    }
    auto explained = FindStored(entry, result);
    if (!explained.ok()) return explained.status();
    // If a time to live or a hint is given, prefill also prompts that are already stored, because
    // that renews their time to live and hint.
    if (!result->complete() || entry.ttl_s > 0 || flags_.hint.is_given()) {
      status = Prefill(entry, result);
      if (!status.ok()) return status;
      explained = FindStored(entry, result);
      if (!explained.ok()) return explained.status();
    }
    if (result->complete()) {
      result->note.clear();
    } else {
      AppendNote(WhyMissing(*explained, *result), &result->note);
    }
    if (flags_.pin || entry.pin) PinStored(*explained, result);
    return absl::OkStatus();
  }

 private:
  absl::Status FindWanted(const WarmEntry& entry, WarmResult* result) {
    v1::TokenizeRequest request;
    *request.mutable_prompt() = entry.prompt;
    auto response = Call(worker_, &v1::Inference::Stub::Tokenize, request, flags_.worker);
    if (!response.ok()) return response.status();
    result->prompt_tokens = static_cast<uint32_t>(response->token_ids_size());
    std::vector<uint32_t> cuts(response->breakpoints().begin(), response->breakpoints().end());
    std::sort(cuts.begin(), cuts.end());
    result->wanted = KeptBoundaries(result->prompt_tokens, cuts, 0, 0, chunk_tokens_);
    result->knows_wanted = true;
    return absl::OkStatus();
  }

  absl::StatusOr<v1::ExplainResponse> FindStored(const WarmEntry& entry, WarmResult* result) {
    v1::ExplainInputRequest request;
    *request.mutable_prompt() = entry.prompt;
    request.set_adapter(entry.adapter);
    auto response = Call(worker_, &v1::Inference::Stub::Explain, request, flags_.worker);
    if (!response.ok()) return response.status();
    result->stored.clear();
    for (const v1::BoundaryInfo& boundary : response->boundaries()) {
      if (boundary.usable() && Contains(result->wanted, boundary.boundary())) {
        result->stored.push_back(boundary.boundary());
      }
    }
    return response;
  }

  absl::Status Prefill(const WarmEntry& entry, WarmResult* result) {
    v1::PrefillRequest request;
    *request.mutable_prompt() = entry.prompt;
    request.set_ttl_s(entry.ttl_s);
    request.set_keep_s(flags_.hint.keep_s);
    request.set_priority(flags_.hint.priority);
    request.set_adapter(entry.adapter);
    ProgressLine progress(console_);
    request.set_report_progress(progress.is_seen());
    grpc::ClientContext context;
    const auto reader = worker_->Prefill(&context, request);
    v1::PrefillResponse response;
    while (reader->Read(&response)) {
      if (!response.has_progress()) continue;
      progress.Show(response.progress().ready_tokens(), response.prompt_tokens());
    }
    const grpc::Status status = reader->Finish();
    if (!status.ok()) return RpcFailure(status, flags_.worker);
    result->computed_tokens = response.computed_tokens();
    result->note = response.published().note();
    return absl::OkStatus();
  }

  // Pins each stored boundary separately. The pin of a longer boundary does not protect the shorter
  // last segment of a boundary at a breakpoint.
  void PinStored(const v1::ExplainResponse& explained, WarmResult* result) {
    for (const v1::BoundaryInfo& boundary : explained.boundaries()) {
      if (!Contains(result->stored, boundary.boundary())) continue;
      const absl::Status status = Pin(boundary);
      if (status.ok()) {
        result->pinned.push_back(boundary.boundary());
      } else {
        AppendNote(
            absl::StrCat("not pinned at boundary ", boundary.boundary(), ": ", status.message()),
            &result->pin_failure);
      }
    }
  }

  absl::Status Pin(const v1::BoundaryInfo& boundary) {
    assert(store_ != nullptr);
    if (boundary.pinned()) return absl::OkStatus();
    if (boundary.restore_point_id().empty()) {
      return absl::NotFoundError("no restore point ends at this boundary");
    }
    v1::PinRequest request;
    request.set_tenant(flags_.store.tenant);
    request.set_restore_point_id(boundary.restore_point_id());
    return Call(store_, &v1::CacheStore::Stub::Pin, request, flags_.store).status();
  }

  const WarmFlags& flags_;
  v1::Inference::Stub* const worker_;
  v1::CacheStore::Stub* const store_;
  const uint32_t chunk_tokens_;
  Console* const console_;
};

struct Totals {
  size_t wanted = 0, stored = 0, entries = 0, failed = 0;
  uint64_t computed_tokens = 0;
  bool knows_wanted = true;  // whether `wanted` was computed for every prompt
  // Returns the fraction of the wanted boundaries that is stored; nullopt if the wanted boundaries
  // of some prompt are unknown, or if there are none.
  std::optional<double> coverage() const {
    if (!knows_wanted || wanted == 0) return std::nullopt;
    return static_cast<double>(stored) / static_cast<double>(wanted);
  }
};

const char* Outcome(const WarmResult& result) {
  if (result.wanted.empty()) return "nothing to keep";
  if (!result.complete()) return "incomplete";
  return result.computed_tokens == 0 ? "already stored" : "stored";
}

std::string PinText(const WarmResult& result) {
  if (result.pinned.empty()) return "";
  if (result.all_pinned()) return ", pinned";
  return absl::StrCat(", ", result.pinned.size(), " of them pinned");
}

void PrintEntry(const WarmFlags& flags, const std::string& name, const WarmResult& result,
                Console& console) {
  if (flags.json) {
    PrintJson({{"entry", name},
               {"outcome", Outcome(result)},
               {"prompt_tokens", result.prompt_tokens},
               {"computed_tokens", result.computed_tokens},
               {"wanted", result.wanted},
               {"stored", result.stored},
               {"pinned", result.all_pinned()},
               {"pinned_boundaries", result.pinned},
               {"note", result.note}},
              console);
    return;
  }
  console.out << name << ": " << Outcome(result) << ", " << result.stored.size() << " of "
              << result.wanted.size() << " boundaries, computed " << result.computed_tokens
              << " of " << result.prompt_tokens << " tokens" << PinText(result)
              << (result.note.empty() ? "" : " (" + result.note + ")") << std::endl;
}

std::string CoverageText(const Totals& totals) {
  if (const std::optional<double> coverage = totals.coverage()) return absl::StrCat(*coverage);
  return totals.knows_wanted ? "none" : "unknown";
}

void PrintTotals(const WarmFlags& flags, const Totals& totals, Console& console) {
  if (flags.json) {
    const std::optional<double> coverage = totals.coverage();
    PrintJson({{"coverage", coverage ? Json(*coverage) : Json(nullptr)},
               {"boundaries", totals.wanted},
               {"stored", totals.stored},
               {"computed_tokens", totals.computed_tokens},
               {"entries", totals.entries},
               {"failed", totals.failed}},
              console);
    return;
  }
  console.out << "coverage " << CoverageText(totals) << ": " << totals.stored << " of "
              << totals.wanted << " boundaries of " << totals.entries << " prompts, computed "
              << totals.computed_tokens << " tokens";
  if (totals.failed > 0) console.out << ", " << totals.failed << " failed";
  console.out << std::endl;
}

absl::StatusOr<std::vector<WarmEntry>> ReadEntries(const std::string& path) {
  auto text = ReadTextFile(path);
  if (!text.ok()) return text.status();
  const size_t slash = path.rfind('/');
  auto entries = ParseWarmFile(*text, slash == std::string::npos ? "." : path.substr(0, slash + 1));
  if (!entries.ok()) return About(path, entries.status());
  return entries;
}

// Makes the worker store all prompts. If a prompt fails, prints the error and continues with the
// next prompt.
Totals WarmAll(const WarmFlags& flags, const std::vector<WarmEntry>& entries, Warmer* warmer,
               Console& console) {
  Totals totals;
  for (const WarmEntry& entry : entries) {
    ++totals.entries;
    if (!flags.json) {
      console.err << "[" << totals.entries << "/" << entries.size() << "] " << entry.name
                  << std::endl;
    }
    WarmResult result;
    const absl::Status warmed = warmer->Warm(entry, &result);
    totals.knows_wanted &= result.knows_wanted;
    totals.wanted += result.wanted.size();
    totals.stored += result.stored.size();
    totals.computed_tokens += result.computed_tokens;
    if (!warmed.ok()) {
      ++totals.failed;
      Fail(console, About(entry.name, warmed));
      continue;
    }
    PrintEntry(flags, entry.name, result, console);
    if (result.pin_failure.empty()) continue;
    ++totals.failed;
    Fail(console,
         absl::FailedPreconditionError(absl::StrCat(entry.name, ": ", result.pin_failure)));
  }
  return totals;
}

int RunWarm(const WarmFlags& flags, Console& console) {
  auto entries = ReadEntries(flags.file);
  if (!entries.ok()) return Fail(console, entries.status());
  if (!flags.ttl.empty()) {
    const absl::StatusOr<uint32_t> ttl = ParseTtl(flags.ttl);
    if (!ttl.ok()) return FailUsage(console, absl::StrCat("--", ttl.status().message()));
    for (WarmEntry& entry : *entries) {
      if (entry.ttl_s == 0) entry.ttl_s = *ttl;
    }
  }
  const bool pins = flags.pin || std::any_of(entries->begin(), entries->end(),
                                             [](const WarmEntry& entry) { return entry.pin; });
  if (pins && flags.store.address.empty()) {
    return FailUsage(console, "pins need --store ADDR, the store to pin in");
  }
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  auto worker = v1::Inference::NewStub(*channel);
  std::unique_ptr<v1::CacheStore::Stub> store;
  if (pins) {
    auto store_channel = Connect(flags.store);
    if (!store_channel.ok()) return Fail(console, store_channel.status());
    store = v1::CacheStore::NewStub(*store_channel);
  }
  auto model =
      Call(worker.get(), &v1::Inference::Stub::GetModel, v1::GetModelRequest(), flags.worker);
  if (!model.ok()) return Fail(console, model.status());
  Warmer warmer(flags, worker.get(), store.get(), model->chunk_tokens(), &console);
  const Totals totals = WarmAll(flags, *entries, &warmer, console);
  PrintTotals(flags, totals, console);
  if (totals.failed > 0) return kExitFailed;
  if (flags.min_coverage > 0 && totals.wanted == 0) {
    return Fail(console, absl::FailedPreconditionError(absl::StrCat(
                             flags.file, ": no prompt in it has a boundary worth storing; ",
                             "pass --min-coverage 0 to accept that")));
  }
  if (totals.coverage().value_or(1.0) < flags.min_coverage) {
    return Fail(console, absl::FailedPreconditionError(absl::StrCat(
                             "coverage (share of boundaries that are stored) is ",
                             CoverageText(totals), ", below --min-coverage ", flags.min_coverage,
                             "; the notes above give the reasons")));
  }
  return kExitOk;
}

}  // namespace

void AddWarmCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<WarmFlags>(
      "warm", "Compute and store prompts ahead of requests", kWarmExamples, RunWarm);
  flags->worker.Declare(command);
  flags->store.access = flags->worker.access;
  flags->store.DeclareOptional(command, "needed to pin");
  command->add_option("--file", flags->file, "YAML list of prompts and chats")->required();
  command->add_option("--min-coverage", flags->min_coverage, "exit with 1 if the coverage is lower")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_flag("--pin", flags->pin, "pin every prompt of the file");
  command->add_option("--ttl", flags->ttl,
                      "time to live of the stored entries (90m, 36h), for prompts without a ttl; "
                      "also extends existing entries");
  DeclareHint(command, &flags->hint);
  AddJson(command, &flags->json, " per prompt, the coverage last");
}

}  // namespace hearth
