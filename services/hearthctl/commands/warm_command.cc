#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/hearthctl/chat_file.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/model_info.h"
#include "services/hearthctl/prompt_flags.h"
#include "services/hearthctl/warmer.h"

namespace hearth {
namespace {

constexpr char kWarmExamples[] =
    R"(  hearthctl warm --file prompts.yaml
  hearthctl warm --file prompts.yaml --pin --store 127.0.0.1:7080 --min-coverage 0.9

  prompts:                             # what to keep warm
    - name: handbook
      text_file: handbook.txt          # or text: "...", or token_ids: [2, 10, 11]
      breakpoints: [120]               # byte offsets for text, token positions for token_ids
  chats:
    - name: assistant
      messages:
        - role: system
          content: "You are brief."    # or a list of {text, cache_breakpoint}
          cache_breakpoint: true
      generation_prompt: false         # the last message goes on later
      pin: true                        # needs --store
      ttl: 36h                         # how long it is kept; else as the store has it
      adapter: legal                   # one of the worker's; else none

Computes what the store lacks, checks with Explain that it is there, and prints the coverage: the
share of the boundaries worth keeping that can be restored. A second run computes nothing. A pin
holds each of them. Exit code 1 below --min-coverage, when nothing in the file is worth keeping, or
when a prompt failed or cannot be pinned.
)";

struct WarmFlags {
  PeerFlags worker;
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  std::string file;
  double min_coverage = 1.0;
  bool pin = false;
  std::string ttl;
  HintFlags hint;
  bool json = false;
};

struct Totals {
  size_t wanted = 0, stored = 0, entries = 0, failed = 0;
  uint64_t computed_tokens = 0;
  bool knows_wanted = true;  // of every prompt
  // Nothing where no number would be true: boundaries are unknown, or there are none.
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

// One prompt's failure leaves the others: a warm-up does what it can and says what it could not.
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
    const absl::Status warmed = warmer->Warm(entry, flags.pin || entry.pin, &result);
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
  for (WarmEntry& entry : *entries) entry.hint = flags.hint.Value();
  const bool pins = flags.pin || std::any_of(entries->begin(), entries->end(),
                                             [](const WarmEntry& entry) { return entry.pin; });
  if (pins && flags.store.address.empty()) {
    return FailUsage(console, "pins are asked for: pass --store ADDR, the store that keeps them");
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
  Warmer warmer(worker.get(), flags.worker, store.get(), flags.store, model->chunk_tokens(),
                v1::DURABILITY_DEFAULT, &console);
  const Totals totals = WarmAll(flags, *entries, &warmer, console);
  PrintTotals(flags, totals, console);
  if (totals.failed > 0) return kExitFailed;
  if (flags.min_coverage > 0 && totals.wanted == 0) {
    return Fail(console,
                absl::FailedPreconditionError(absl::StrCat(
                    flags.file, ": nothing in it is worth keeping, so that nothing is kept warm; ",
                    "--min-coverage 0 takes that")));
  }
  if (totals.coverage().value_or(1.0) < flags.min_coverage) {
    return Fail(console, absl::FailedPreconditionError(
                             absl::StrCat("coverage ", CoverageText(totals), " is below ",
                                          flags.min_coverage, "; the notes above say why")));
  }
  return kExitOk;
}

}  // namespace

void AddWarmCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<WarmFlags>(
      "warm", "Compute and store prompts before they are asked", kWarmExamples, RunWarm);
  flags->worker.Declare(command);
  flags->store.access = flags->worker.access;
  flags->store.DeclareOptional(command, "needed to pin");
  command->Add("--file", &flags->file, "YAML list of prompts and chats").Required();
  command->Add("--min-coverage", &flags->min_coverage, "lowest coverage that is a success")
      .Between(0.0, 1.0)
      .ShowDefault();
  command->AddSwitch("--pin", &flags->pin, "pin every prompt of the file");
  command->Add("--ttl", &flags->ttl,
               "how long what is stored may be served, and what is there already from now "
               "on: 90m, 36h; of prompts that say nothing else");
  flags->hint.Declare(command);
  command->AddJson(&flags->json, " a prompt, the coverage last");
}

}  // namespace hearth
