#include "services/hearthctl/model_info.h"

#include "absl/strings/str_cat.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {

absl::StatusOr<v1::GetModelResponse> GetModel(const PeerFlags& worker) {
  return Ask(worker, &v1::Inference::Stub::GetModel, v1::GetModelRequest());
}

int PrintModel(const v1::GetModelResponse& model, bool as_json, Console& console) {
  Json json = MessageJson(model);
  RenameField("kv_budget_bytes", "kv_bytes", &json);
  json.erase("default_sampling");
  const v1::SamplingParams& sampling = model.default_sampling();
  json["default_temperature"] = sampling.temperature();
  json["default_top_k"] = sampling.top_k();
  json["default_top_p"] = sampling.top_p();
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
