// The command doctor: checks running servers through their APIs, and says what to change.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "services/cli/version.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/model_info.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kDoctorExamples[] =
    R"(  hearthctl doctor
  hearthctl doctor --store unix:/run/s --worker unix:/run/w1 --worker unix:/run/w2
Checks that all servers answer and have one version; that the workers' fingerprints are equal, or
which field differs; how full the store is, and its error counters. Then one worker stores a prompt
of two chunks and the others restore it: from where, and with the same bits or not. The prompt is
dropped at the end (--no-probe skips this). Exit code 1 if something is wrong.
)";

constexpr char kLookAtDisk[] = "check the disk and the store's log";
constexpr double kFullShare = 0.95;

struct DoctorFlags {
  PeerFlags worker;
  std::vector<std::string> workers;
  PeerFlags store{PeerKind::kStore, "", {}, ""};
  bool no_probe = false;
  bool json = false;
};

// Prints the result of each check, and remembers whether all are well.
class Findings {
 public:
  Findings(bool json, Console* console) : json_(json), console_(console) {}

  void Good(const std::string& check, const std::string& text) { Tell("ok", check, text, ""); }
  void Odd(const std::string& check, const std::string& text, const std::string& advice) {
    Tell("look", check, text, advice);
  }
  void Bad(const std::string& check, const std::string& text, const std::string& advice) {
    Tell("wrong", check, text, advice);
    is_well_ = false;
  }
  bool is_well() const { return is_well_; }

 private:
  void Tell(const char* state, const std::string& check, const std::string& text,
            const std::string& advice) {
    if (json_) {
      PrintJson({{"check", check}, {"state", state}, {"text", text}, {"advice", advice}},
                *console_);
      return;
    }
    console_->out << absl::StrFormat("%-5s  %-12s  %s", state, check, text) << "\n";
    if (!advice.empty()) console_->out << std::string(21, ' ') << advice << "\n";
    console_->out << std::flush;
  }

  const bool json_;
  Console* const console_;
  bool is_well_ = true;
};

struct Worker {
  PeerFlags peer;
  v1::GetModelResponse model;
};

void CheckVersion(const std::string& who, const std::string& version, Findings* findings) {
  if (version == kVersion) return findings->Good("reached", absl::StrCat(who, ", ", version));
  findings->Odd("version",
                absl::StrCat(who, " has version ", version, ", hearthctl has ", kVersion),
                "run the same version everywhere: mixed versions are not tested together");
}

std::vector<Worker> ReachWorkers(const DoctorFlags& flags, Findings* findings) {
  std::vector<Worker> reached;
  for (const std::string& address : flags.workers) {
    Worker worker{flags.worker, {}};
    worker.peer.address = address;
    auto model = GetModel(worker.peer);
    if (!model.ok()) {
      findings->Bad("reached", std::string(model.status().message()), "");
      continue;
    }
    worker.model = *std::move(model);
    CheckVersion(absl::StrCat("worker at ", address), worker.model.version(), findings);
    if (!worker.model.unreachable_store().empty()) {
      findings->Bad("store",
                    absl::StrCat("worker at ", address, " cannot reach its store, ",
                                 worker.model.unreachable_store()),
                    "start the store, or read the reason in the worker's log");
    }
    if (!worker.model.why_not_invariant().empty()) {
      findings->Odd(
          "exactness",
          absl::StrCat("worker at ", address, " has the class ", worker.model.exactness()),
          worker.model.why_not_invariant());
    }
    reached.push_back(std::move(worker));
  }
  return reached;
}

void CompareFingerprints(const std::vector<Worker>& workers, Findings* findings) {
  if (workers.size() < 2) return;
  const auto first = FromProto(workers[0].model.fingerprint());
  if (!first.ok()) return findings->Bad("fingerprint", std::string(first.status().message()), "");
  bool equal = true;
  for (size_t i = 1; i < workers.size(); ++i) {
    const auto other = FromProto(workers[i].model.fingerprint());
    if (!other.ok()) continue;
    for (const FieldDifference& field : Compare(*first, *other)) {
      equal = false;
      findings->Bad(
          "fingerprint",
          absl::StrCat(field.field, " is \"", field.ours, "\" at ", workers[0].peer.address,
                       " and \"", field.theirs, "\" at ", workers[i].peer.address),
          "these workers share no prefixes: give both the same model, flags and class");
    }
  }
  if (equal) {
    findings->Good("fingerprint", absl::StrCat("equal at all ", workers.size(), " workers"));
  }
}

// Reports each counter that is above 0 and needs an operator's attention.
void ReadCounters(const v1::StatsResponse& stats, Findings* findings) {
  static const auto& advice = *new std::map<std::string, const char*>{
      {"publishes_refused_full", "raise --disk-bytes, or unpin restore points"},
      {"publishes_refused_quota", "raise the tenant's limits (--tenants-file)"},
      {"publishes_refused_staged", "raise --max-staged-bytes"},
      {"write_behind_failed", kLookAtDisk},
      {"tier_errors", kLookAtDisk},
      {"quarantined_objects", "stored bytes were damaged: check the disk and the memory"},
      {"recovery_damage", "the last start dropped damaged entries: check the disk"},
      {"recovery_lost_restore_points", "acknowledged restore points were lost: check the disk"},
      {"shared_unreachable_shards", "check Redis and the store's log"},
      {"nondeterminism", "one worker computes wrong values: see docs/security.md"},
  };
  for (const auto& [name, what] : advice) {
    const auto counter = stats.counters().find(name);
    if (counter == stats.counters().end() || counter->second == 0) continue;
    // The counter of unreachable shards is the current state; all other counters count events since
    // the store's start.
    const auto tell = absl::EndsWith(name, "unreachable_shards") ? &Findings::Bad : &Findings::Odd;
    (findings->*tell)("counter", absl::StrCat(name, " is ", counter->second), what);
  }
}

bool CheckStore(const DoctorFlags& flags, Findings* findings) {
  v1::StatsRequest request;
  request.set_tenant(flags.store.tenant);
  const auto stats = Ask(flags.store, &v1::CacheStore::Stub::Stats, request);
  if (!stats.ok()) {
    findings->Bad("reached", std::string(stats.status().message()), "");
    return false;
  }
  CheckVersion(absl::StrCat("store at ", flags.store.address), stats->version(), findings);
  for (const v1::TierStats& tier : stats->tiers()) {
    if (tier.capacity_bytes() == 0) continue;
    const double share = static_cast<double>(tier.bytes()) / tier.capacity_bytes();
    const std::string text = absl::StrCat(TierText(tier.tier()), ": ", SizeText(tier.bytes()),
                                          " of ", SizeText(tier.capacity_bytes()));
    if (share < kFullShare || tier.evicted_restore_points() == 0) {
      findings->Good("room", text);
    } else {
      findings->Odd("room", absl::StrCat(text, ", ", tier.evicted_restore_points(), " evicted"),
                    absl::StrCat("hearth-simulate predicts the gain of more --",
                                 TierText(tier.tier()), "-bytes"));
    }
  }
  ReadCounters(*stats, findings);
  return true;
}

// Returns a request with random token ids, a prompt that no store can have cached.
v1::GenerateRequest ProbeRequest(const v1::GetModelResponse& model) {
  v1::GenerateRequest request;
  std::mt19937_64 random{std::random_device()()};
  // In Gemma's vocabulary, ids below 300 are mostly control tokens. Choose ids above them if the
  // vocabulary is large enough.
  const uint32_t end = std::min<uint32_t>(std::max<uint32_t>(model.vocab_size(), 2), 10000);
  std::uniform_int_distribution<uint32_t> id(end > 300 ? 300 : 1, end - 1);
  for (uint32_t i = 0; i < 2 * model.chunk_tokens() + 1; ++i) {
    request.mutable_prompt()->mutable_token_ids()->add_ids(id(random));
  }
  request.set_max_new_tokens(1);
  request.set_ignore_eos(true);
  request.set_wait_published(true);
  return request;
}

absl::StatusOr<GenerationResult> AskProbe(const Worker& worker,
                                          const v1::GenerateRequest& request) {
  auto channel = Connect(worker.peer);
  if (!channel.ok()) return channel.status();
  grpc::ClientContext context;
  GenerationResult result = Generate(v1::Inference::NewStub(*channel).get(), request, &context, {});
  if (!result.status.ok()) return RpcFailure(result.status, worker.peer);
  return result;
}

void CheckRestore(const Worker& first, const GenerationResult& stored, const Worker& next,
                  const GenerationResult& restored, Findings* findings) {
  const v1::Load& load = restored.started.load();
  const std::string who =
      absl::StrCat(next.peer.address, ", prefix stored by ", first.peer.address);
  if (restored.started.cached_tokens() == 0 && load.decision() == "compute") {
    findings->Good("sharing",
                   absl::StrCat(who, ": the prefix is stored, but computing it is faster"));
  } else if (restored.started.cached_tokens() == 0) {
    findings->Bad(
        "sharing", absl::StrCat(who, ": nothing was restored"),
        "run hearthctl explain with the same prompt at both workers; do both use the same store?");
    return;
  } else {
    findings->Good("sharing", absl::StrCat(who, ": ", restored.started.cached_tokens(),
                                           " tokens restored from ", load.source(), ", in ",
                                           MsText(load.took_ms())));
  }
  const bool is_local = absl::StartsWith(next.peer.address, "unix:") ||
                        absl::StartsWith(next.peer.address, "127.0.0.1:");
  if (is_local && absl::StartsWith(load.source(), "wire")) {
    findings->Odd("memory",
                  absl::StrCat(next.peer.address, " cannot map the store's shared memory"),
                  "if the store is on the same machine, run both as one user and put the socket of "
                  "--shared-memory where both can open it");
  }
  if (restored.finished.first_logits_sha256() != stored.finished.first_logits_sha256()) {
    findings->Bad("bits", absl::StrCat("the first token's logits differ: ", who),
                  "one of the two workers computes wrong values: see docs/security.md");
  }
}

// Removes the restore points of the test prompt from the store. Returns false if the worker does
// not answer.
bool DropProbe(const DoctorFlags& flags, const Worker& worker, const v1::PromptInput& prompt) {
  v1::ExplainInputRequest request;
  *request.mutable_prompt() = prompt;
  const auto explained = Ask(worker.peer, &v1::Inference::Stub::Explain, request);
  if (!explained.ok()) return false;
  for (const v1::BoundaryInfo& boundary : explained->boundaries()) {
    if (boundary.restore_point_id().empty()) continue;
    v1::DropRequest drop;
    drop.set_tenant(flags.store.tenant);
    drop.set_restore_point_id(boundary.restore_point_id());
    Ask(flags.store, &v1::CacheStore::Stub::Drop, drop).IgnoreError();
  }
  return true;
}

void Probe(const std::vector<Worker>& workers, const v1::GenerateRequest& request,
           Findings* findings) {
  const auto stored = AskProbe(workers[0], request);
  if (!stored.ok()) return findings->Bad("probe", std::string(stored.status().message()), "");
  const std::string who = absl::StrCat("worker at ", workers[0].peer.address);
  if (!stored->published || stored->published->published_tokens() == 0) {
    findings->Bad("publish",
                  absl::StrCat(who, " stored nothing",
                               stored->published ? ": " + stored->published->note() : ""),
                  "give this worker the --store that doctor checks, and make it reachable");
    return;
  }
  findings->Good("publish",
                 absl::StrCat(who, " stored ", stored->published->published_tokens(), " tokens (",
                              DurabilityText(stored->published->durable()), ")"));
  for (size_t i = 1; i < workers.size(); ++i) {
    const auto restored = AskProbe(workers[i], request);
    if (!restored.ok()) {
      findings->Bad("probe", std::string(restored.status().message()), "");
    } else {
      CheckRestore(workers[0], *stored, workers[i], *restored, findings);
    }
  }
}

int RunDoctor(const DoctorFlags& flags, Console& console) {
  Findings findings(flags.json, &console);
  const bool has_store = CheckStore(flags, &findings);
  const std::vector<Worker> workers = ReachWorkers(flags, &findings);
  CompareFingerprints(workers, &findings);
  if (has_store && !workers.empty() && !flags.no_probe) {
    const v1::GenerateRequest request = ProbeRequest(workers[0].model);
    Probe(workers, request, &findings);
    // Also remove them if a worker failed, because it may have stored the prompt before.
    std::any_of(workers.begin(), workers.end(),
                [&](const Worker& worker) { return DropProbe(flags, worker, request.prompt()); });
  }
  return findings.is_well() ? kExitOk : kExitFailed;
}

}  // namespace

void AddDoctorCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<DoctorFlags>(
      "doctor", "Check running servers, and print what to change", kDoctorExamples, RunDoctor);
  flags->worker.DeclareSeveral(command, &flags->workers);
  flags->store.access = flags->worker.access;
  flags->store.address = kDefaultStoreAddress;
  flags->store.DeclareOptional(command, "shared by these workers")->envname("HEARTHCTL_STORE");
  command->add_flag("--no-probe", flags->no_probe,
                    "do not make the workers store and restore a prompt");
  AddJson(command, &flags->json, " per finding");
}

}  // namespace hearth
