#include "services/hearthctl/model_info.h"

namespace hearth {

absl::StatusOr<v1::GetModelResponse> GetModel(v1::Inference::Stub* stub, const PeerFlags& worker) {
  v1::GetModelResponse model;
  grpc::ClientContext context;
  const grpc::Status status = stub->GetModel(&context, v1::GetModelRequest(), &model);
  if (!status.ok()) return RpcFailure(status, worker);
  return model;
}

Json FingerprintFieldsJson(const Fingerprint& fingerprint) {
  Json json = Json::Object();
  for (const FingerprintField& field : fingerprint.fields()) {
    std::visit([&](const auto& value) { json[field.name] = value; }, field.value);
  }
  return json;
}

}  // namespace hearth
