// Gets a worker's model, and prints the model and every field of its fingerprint.
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

// Prints the worker's answer to GetModel, as text or as one JSON object. Returns the exit code.
int PrintModel(const v1::GetModelResponse& model, bool as_json, Console& console);

// Prints each field of the fingerprint as a line of text.
void PrintFields(const Fingerprint& fingerprint, Console& console);
// Returns the fields of the fingerprint as JSON, such as {"chunk_tokens": 128, ...}.
Json FingerprintFieldsJson(const Fingerprint& fingerprint);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_MODEL_INFO_H_
