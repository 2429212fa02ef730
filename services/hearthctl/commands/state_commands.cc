// The commands state save and state load: save the state of an inference to a file, and continue
// the inference at another worker.
#include <string>
#include <utility>

#include "services/cli/connection.h"
#include "services/hearthctl/commands.h"
#include "services/hearthctl/generation.h"
#include "services/hearthctl/mapped_file.h"
#include "services/hearthctl/new_file.h"
#include "services/hearthctl/prompt_flags.h"

namespace hearth {
namespace {

constexpr char kSaveExamples[] =
    R"(  hearthctl state save half.state --prompt "Water boils at" --max-new-tokens 8
  hearthctl state save --worker a:7070 half.state --chat chat.json --temperature 0.7 --seed 1
Generates, then saves the inference: its keys and values, tokens and sampler. Replaces an existing
file only with --force. Writes the whole file or no file.
)";
constexpr char kLoadExamples[] =
    R"(  hearthctl state load half.state --max-new-tokens 8
  hearthctl state load --worker b:7070 half.state --max-new-tokens 8 --json
Continues token for token with the saved sampler. The worker needs the same model, adapter and
kernels; otherwise it names the part that differs. With --json, token_ids has only new tokens.
)";

// Bytes of the state per message of the stream.
constexpr size_t kChunkBytes = size_t{1} << 20;

struct SaveFlags {
  PeerFlags worker;
  std::string path;
  PromptFlags prompt;
  GenerationFlags generation;
  bool force = false;
  bool json = false;
};
struct LoadFlags {
  PeerFlags worker;
  std::string path;
  GenerationFlags generation;
  bool json = false;
};

GenerationEvents Printing(bool json, Console& console) {
  GenerationEvents events;
  if (json) return events;
  events.token = [&console](const v1::GeneratedToken& token) {
    return PrintAnswer(token.text(), console);
  };
  return events;
}

// Receives the state of an inference, writes it to `file`, and commits the file. Returns its size
// in bytes.
absl::StatusOr<uint64_t> Receive(v1::Inference::Stub* stub, const std::string& request_id,
                                 const PeerFlags& worker, NewFile* file) {
  v1::SaveStateRequest request;
  request.set_request_id(request_id);
  grpc::ClientContext context;
  const auto reader = stub->SaveState(&context, request);
  v1::StateChunk chunk;
  absl::Status written;
  uint64_t bytes = 0;
  while (written.ok() && reader->Read(&chunk)) {
    written = file->WriteAt(bytes, chunk.data());
    bytes += chunk.data().size();
  }
  if (!written.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!written.ok()) return written;
  if (!status.ok()) return RpcFailure(status, worker);
  if (absl::Status committed = file->Commit(); !committed.ok()) return committed;
  return bytes;
}

int RunSave(const SaveFlags& flags, Console& console) {
  v1::GenerateRequest request;
  auto prompt = flags.prompt.Build();
  if (!prompt.ok()) return Fail(console, prompt.status());
  *request.mutable_prompt() = *std::move(prompt);
  flags.generation.Apply(&request);
  auto file = NewFile::Create(flags.path, flags.force);
  if (!file.ok()) return Fail(console, file.status());
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto stub = v1::Inference::NewStub(*channel);
  grpc::ClientContext context;
  const GenerationResult result =
      Generate(stub.get(), request, &context, Printing(flags.json, console));
  if (!result.status.ok()) return Fail(console, RpcFailure(result.status, flags.worker));
  const absl::StatusOr<uint64_t> bytes =
      Receive(stub.get(), result.request_id, flags.worker, file->get());
  if (!bytes.ok()) return Fail(console, bytes.status());
  if (flags.json) {
    Json json = result.ToJson();
    json["path"] = flags.path;
    json["bytes"] = *bytes;
    return PrintJson(json, console);
  }
  console.out << std::endl;
  console.err << "-- " << flags.path << ": " << SizeText(*bytes) << ", "
              << result.started.prompt_tokens() + result.finished.generated_tokens() << " tokens"
              << std::endl;
  return kExitOk;
}

absl::StatusOr<v1::LoadStateResponse> Send(v1::Inference::Stub* stub, absl::string_view bytes,
                                           const LoadFlags& flags) {
  grpc::ClientContext context;
  v1::LoadStateResponse loaded;
  const auto writer = stub->LoadState(&context, &loaded);
  v1::StateChunk chunk;
  bool goes_on = true;  // false if the worker refused the state and no longer reads the stream
  while (goes_on && !bytes.empty()) {
    const absl::string_view piece = bytes.substr(0, kChunkBytes);
    chunk.set_data(piece.data(), piece.size());
    bytes.remove_prefix(piece.size());
    goes_on = writer->Write(chunk);
  }
  writer->WritesDone();
  const grpc::Status status = writer->Finish();
  if (!status.ok()) return About(flags.path, RpcFailure(status, flags.worker));
  return loaded;
}

// Returns the Generate request that continues the loaded inference.
v1::GenerateRequest RestOf(const v1::LoadStateResponse& loaded, const LoadFlags& flags) {
  v1::GenerateRequest request;
  *request.mutable_prompt()->mutable_token_ids()->mutable_ids() = loaded.token_ids();
  *request.mutable_sampling() = loaded.sampling();
  request.set_first_draw(loaded.first_draw());
  request.set_adapter(loaded.adapter());
  if (loaded.has_grammar()) *request.mutable_grammar() = loaded.grammar();
  flags.generation.Apply(&request);
  return request;
}

int RunLoad(const LoadFlags& flags, Console& console) {
  const auto file = MappedFile::Open(flags.path);
  if (!file.ok()) return Fail(console, file.status());
  auto channel = Connect(flags.worker);
  if (!channel.ok()) return Fail(console, channel.status());
  const auto stub = v1::Inference::NewStub(*channel);
  const auto loaded = Send(stub.get(), (*file)->bytes(), flags);
  if (!loaded.ok()) return Fail(console, loaded.status());
  grpc::ClientContext context;
  const GenerationResult result =
      Generate(stub.get(), RestOf(*loaded, flags), &context, Printing(flags.json, console));
  if (!result.status.ok()) return Fail(console, RpcFailure(result.status, flags.worker));
  if (flags.json) return PrintJson(result.ToJson(), console);
  console.out << std::endl;
  console.err << "-- continued for " << result.finished.generated_tokens() << " tokens, "
              << CacheSentence(result) << std::endl;
  return kExitOk;
}

}  // namespace

void AddStateCommands(CommandLine* line) {
  const auto [save, saved] = line->Add<SaveFlags>(
      "state save", "Generate, then save the inference to a file", kSaveExamples, RunSave);
  saved->worker.Declare(save);
  save->add_option("file", saved->path, "the file to write")->required();
  saved->prompt.Declare(save, /*takes_word=*/false);
  saved->generation.Declare(save, 128);
  AddForce(save, &saved->force);
  AddJson(save, &saved->json);

  const auto [load, loaded] =
      line->Add<LoadFlags>("state load", "Continue a saved inference", kLoadExamples, RunLoad);
  loaded->worker.Declare(load);
  load->add_option("file", loaded->path, "a file that state save made")->required();
  loaded->generation.DeclareEnd(load, 128);
  AddJson(load, &loaded->json);
}

}  // namespace hearth
