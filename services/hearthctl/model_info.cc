#include "services/hearthctl/model_info.h"

#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {

absl::StatusOr<v1::GetModelResponse> GetModel(const PeerFlags& worker) {
  return Ask(worker, &v1::Inference::Stub::GetModel, v1::GetModelRequest());
}

int PrintModel(const v1::GetModelResponse& model, bool as_json, Console& console) {
  Json json{{"version", model.version()},
            {"model_dir", model.model_dir()},
            {"device", model.device()},
            {"dtype", model.dtype()},
            {"exactness", model.exactness()},
            {"why_not_invariant", model.why_not_invariant()},
            {"weights", model.weights()},
            {"arithmetic", model.arithmetic()},
            {"kv_bytes", model.kv_budget_bytes()},
            {"kv_used_bytes", model.kv_used_bytes()},
            {"chunk_tokens", model.chunk_tokens()},
            {"context_tokens", model.context_tokens()},
            {"vocab_size", model.vocab_size()},
            {"window", model.window()},
            {"has_tokenizer", model.has_tokenizer()},
            {"why_no_tokenizer", model.why_no_tokenizer()},
            {"why_no_chats", model.why_no_chats()},
            {"notes", model.notes()},
            {"default_temperature", model.default_sampling().temperature()},
            {"default_top_k", model.default_sampling().top_k()},
            {"default_top_p", model.default_sampling().top_p()},
            {"default_sampling_from", model.default_sampling_from()},
            {"fingerprint", HexText(model.fingerprint().digest())},
            {"adapters", Json::array()}};
  for (const v1::Adapter& adapter : model.adapters()) {
    json["adapters"].push_back({{"name", adapter.name()},
                                {"rank", adapter.rank()},
                                {"bytes", adapter.bytes()},
                                {"fingerprint", HexText(adapter.fingerprint().digest())}});
  }
  const auto fingerprint = FromProto(model.fingerprint());
  if (!fingerprint.ok()) return Fail(console, fingerprint.status());
  if (as_json) {
    json["fields"] = FingerprintFieldsJson(*fingerprint);
    return PrintJson(json, console);
  }
  for (const auto& [name, value] : json.items()) {
    console.out << "  " << name << " "
                << (value.is_string() ? value.get<std::string>() : JsonLine(value)) << "\n";
  }
  PrintFields(*fingerprint, console);
  return kExitOk;
}

void PrintFields(const Fingerprint& fingerprint, Console& console) {
  for (const FingerprintField& field : fingerprint.fields()) {
    console.out << "  " << field.name << " " << field.ValueText() << "\n";
  }
  console.out << std::flush;
}

Json FingerprintFieldsJson(const Fingerprint& fingerprint) {
  Json json = Json::object();
  for (const FingerprintField& field : fingerprint.fields()) {
    std::visit([&](const auto& value) { json[field.name] = value; }, field.value);
  }
  return json;
}

}  // namespace hearth
