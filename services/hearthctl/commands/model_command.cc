#include "services/hearthctl/command_set.h"
#include "services/hearthctl/model_info.h"

namespace hearth {
namespace {

constexpr char kModelExamples[] =
    R"(  hearthctl model
  hearthctl model --worker worker:7070 --json
What a worker serves, and in which class of bits.
)";

struct ModelFlags {
  PeerFlags worker;
  bool json = false;
};

int RunModel(const ModelFlags& flags, Console& console) {
  auto model = GetModel(flags.worker);
  if (!model.ok()) return Fail(console, model.status());
  PrintModel(*model, flags.json, console);
  return kExitOk;
}

}  // namespace

void AddModelCommand(CommandSet* commands) {
  const auto [command, flags] = commands->Add<ModelFlags>(
      "model", "What a worker serves, and in which class", kModelExamples, RunModel);
  flags->worker.Declare(command);
  command->AddJson(&flags->json, ", as of stats --worker: exactness, why_not_invariant, ...");
}

}  // namespace hearth
