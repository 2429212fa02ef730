#include <memory>

#include "proto/inference.grpc.pb.h"
#include "services/hearthctl/command_set.h"
#include "services/hearthctl/connection.h"
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
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  v1::TokenizeRequest request;
  *request.mutable_prompt() = *std::move(prompt);
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status =
      v1::Inference::NewStub(*channel)->Tokenize(&context, request, &response);
  if (!status.ok()) return Fail(console, RpcFailure(status, flags.worker));
  const auto list = [](const auto& values) {
    return std::vector<uint32_t>(values.begin(), values.end());
  };
  if (flags.json) {
    console.out << JsonLine(Json{{"token_ids", list(response.token_ids())},
                                 {"breakpoints", list(response.breakpoints())},
                                 {"text", response.text()}})
                << std::endl;
    return kExitOk;
  }
  for (int i = 0; i < response.token_ids_size(); ++i) {
    console.out << (i == 0 ? "" : ",") << response.token_ids(i);
  }
  console.out << std::endl;
  console.err << "-- " << response.token_ids_size() << " tokens";
  for (uint32_t breakpoint : response.breakpoints()) {
    console.err << ", breakpoint at " << breakpoint;
  }
  console.err << std::endl;
  return kExitOk;
}

}  // namespace

void AddTokenizeCommand(CommandSet* commands) {
  auto flags = std::make_shared<TokenizeFlags>();
  CommandFlags* command = commands->Add("tokenize", "Show a prompt's token ids", kTokenizeExamples);
  flags->worker.Declare(command);
  flags->prompt.Declare(command);
  command->AddJson(&flags->json, ": token_ids, breakpoints, text");
  commands->Run(command, [flags](Console& console) { return RunTokenize(*flags, console); });
}

}  // namespace hearth
