#include "proto/snapshot_format.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/model_info.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kFingerprintExamples[] =
    R"(  hearthctl fingerprint
  hearthctl fingerprint --against saved.snapshot   (exit 1 when they differ, field by field)
Workers share prefixes when their fingerprints are equal.
)";

struct FingerprintFlags {
  PeerFlags worker;
  std::string against;
  bool json = false;
};

int CompareWithFile(const FingerprintFlags& flags, const Fingerprint& running, Console& console) {
  auto file = MappedFile::Open(flags.against);
  if (!file.ok()) return Fail(console, file.status());
  auto header = ParseSnapshotHeader((*file)->bytes());
  if (!header.ok()) return Fail(console, header.status());
  const auto differences = Compare(running, header->fingerprint);
  for (const FieldDifference& difference : differences) {
    if (flags.json) {
      PrintJson(
          {{"field", difference.field}, {"running", difference.ours}, {"saved", difference.theirs}},
          console);
    } else {
      console.out << difference.field << ": running \"" << difference.ours << "\", saved \""
                  << difference.theirs << "\"\n";
    }
  }
  if (flags.json) {
    PrintJson({{"equal", differences.empty()}, {"differences", differences.size()}}, console);
  } else if (differences.empty()) {
    console.out << "equal\n";
  }
  console.out << std::flush;
  return differences.empty() ? kExitOk : kExitFailed;
}

int RunFingerprint(const FingerprintFlags& flags, Console& console) {
  auto model = GetModel(flags.worker);
  if (!model.ok()) return Fail(console, model.status());
  auto fingerprint = FromProto(model->fingerprint());
  if (!fingerprint.ok()) return Fail(console, fingerprint.status());
  if (!flags.against.empty()) return CompareWithFile(flags, *fingerprint, console);
  if (flags.json) {
    return PrintJson({{"digest", DigestHex(fingerprint->digest())},
                      {"fields", FingerprintFieldsJson(*fingerprint)}},
                     console);
  }
  console.out << DigestHex(fingerprint->digest()) << "\n";
  for (const FingerprintField& field : fingerprint->fields()) {
    console.out << "  " << field.name << " " << field.ValueText() << "\n";
  }
  console.out << std::flush;
  return kExitOk;
}

}  // namespace

void AddFingerprintCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<FingerprintFlags>(
      "fingerprint", "What decides a worker's KV bytes", kFingerprintExamples, RunFingerprint);
  flags->worker.Declare(command);
  command->Add("--against", &flags->against, "a snapshot file to compare with");
  command->AddJson(&flags->json,
                   ": digest, fields; with --against one for each difference, "
                   "and last equal, differences");
}

}  // namespace hearth
