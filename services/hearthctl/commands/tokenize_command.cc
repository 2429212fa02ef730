#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/json_text.h"
#include "services/hearthctl/prompt_flags.h"

namespace hearth {
namespace {

constexpr char kTokenizeExamples[] =
    R"(  hearthctl tokenize --prompt "Hello" --json
  hearthctl tokenize --chat chat.json
)";

struct TokenizeFlags {
  PeerFlags worker;
  PromptFlags prompt;
  bool json = false;
};

int RunTokenize(const TokenizeFlags& flags, Console& console) {
  auto prompt = flags.prompt.Build();
  if (!prompt.ok()) return Fail(console, prompt.status());
  v1::TokenizeRequest request;
  *request.mutable_prompt() = *std::move(prompt);
  const auto response = Ask(flags.worker, &v1::Inference::Stub::Tokenize, request);
  if (!response.ok()) return Fail(console, response.status());
  if (flags.json) return PrintJson(MessageJson(*response), console);
  for (int i = 0; i < response->token_ids_size(); ++i) {
    console.out << (i == 0 ? "" : ",") << response->token_ids(i);
  }
  console.out << std::endl;
  console.err << "-- " << response->token_ids_size() << " tokens";
  for (uint32_t breakpoint : response->breakpoints()) {
    console.err << ", breakpoint at " << breakpoint;
  }
  console.err << std::endl;
  return kExitOk;
}

}  // namespace

void AddTokenizeCommand(CommandLine* line) {
  const auto [command, flags] = line->Add<TokenizeFlags>("tokenize", "Show a prompt's token ids",
                                                         kTokenizeExamples, RunTokenize);
  flags->worker.Declare(command);
  flags->prompt.Declare(command);
  AddJson(command, &flags->json, ": token_ids, breakpoints, text");
}

}  // namespace hearth
