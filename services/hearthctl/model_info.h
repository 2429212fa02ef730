// Asks a worker for its model, and prints it and its fingerprint with every field.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_MODEL_INFO_H_
#define HEARTH_SERVICES_HEARTHCTL_MODEL_INFO_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/fingerprint.h"
#include "proto/inference.grpc.pb.h"
#include "services/cli/connection.h"
#include "services/cli/console.h"
#include "services/hearthctl/json_text.h"

namespace hearth {

absl::StatusOr<v1::GetModelResponse> GetModel(const PeerFlags& worker);

// Prints GetModel's answer, for people or as one JSON object. Returns the exit code.
int PrintModel(const v1::GetModelResponse& model, bool as_json, Console& console);

// {"chunk_tokens": 128, ...}
void PrintFields(const Fingerprint& fingerprint, Console& console);
Json FingerprintFieldsJson(const Fingerprint& fingerprint);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_MODEL_INFO_H_
