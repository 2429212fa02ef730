#include "proto/snapshot_format.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/model_info.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

constexpr char kModelExamples[] =
    R"(  hearthctl model
  hearthctl model --worker worker:7070 --json
  hearthctl model --against saved.snapshot   (prints the fields that differ; exit code 1 if any)
Shows the model, its exactness class, and the fields of the fingerprint, which decide the bytes of
keys and values. Workers share prefixes if their fingerprints are equal.
)";

struct ModelFlags {
  PeerFlags worker;
  std::string against;
  bool json = false;
};

int CompareWithFile(const ModelFlags& flags, const Fingerprint& running, Console& console) {
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

int RunModel(const ModelFlags& flags, Console& console) {
  auto model = GetModel(flags.worker);
  if (!model.ok()) return Fail(console, model.status());
  if (flags.against.empty()) return PrintModel(*model, flags.json, console);
  auto fingerprint = FromProto(model->fingerprint());
  if (!fingerprint.ok()) return Fail(console, fingerprint.status());
  return CompareWithFile(flags, *fingerprint, console);
}

}  // namespace

void AddModelCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<ModelFlags>(
      "model", "Show a worker's model and its fingerprint", kModelExamples, RunModel);
  flags->worker.Declare(command);
  command->add_option("--against", flags->against, "a snapshot file to compare with");
  AddJson(command, &flags->json,
          ": exactness, fingerprint, fields, ...; with --against one per difference, then one with "
          "equal, differences");
}

}  // namespace hearth
