#include "services/hearthctl/warmer.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"

namespace hearth {

absl::StatusOr<WarmResult> Warmer::Warm(const WarmEntry& entry, bool pin) {
  WarmResult result;
  absl::Status status = FindWanted(entry, &result);
  if (!status.ok()) return status;
  if (result.wanted.empty()) {
    result.note = absl::StrCat("shorter than one chunk of ", chunk_tokens_,
                               " tokens and without a breakpoint: nothing to keep");
    return result;
  }
  auto explained = FindStored(entry, &result);
  if (!explained.ok()) return explained.status();
  if (!result.complete()) {
    status = Prefill(entry, &result);
    if (!status.ok()) return status;
    explained = FindStored(entry, &result);
    if (!explained.ok()) return explained.status();
  }
  if (pin && !result.stored.empty()) {
    status = Pin(*explained, &result);
    if (!status.ok()) return status;
  }
  return result;
}

absl::Status Warmer::FindWanted(const WarmEntry& entry, WarmResult* result) {
  v1::TokenizeRequest request;
  *request.mutable_prompt() = entry.prompt;
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = worker_->Tokenize(&context, request, &response);
  if (!status.ok()) return RpcFailure(status, worker_flags_);
  result->prompt_tokens = static_cast<uint32_t>(response.token_ids_size());
  std::vector<uint32_t> cuts(response.breakpoints().begin(), response.breakpoints().end());
  std::sort(cuts.begin(), cuts.end());
  result->wanted = KeptBoundaries(result->prompt_tokens, cuts, 0, 0, chunk_tokens_);
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainResponse> Warmer::FindStored(const WarmEntry& entry, WarmResult* result) {
  v1::ExplainInputRequest request;
  *request.mutable_prompt() = entry.prompt;
  v1::ExplainResponse response;
  grpc::ClientContext context;
  const grpc::Status status = worker_->Explain(&context, request, &response);
  if (!status.ok()) return RpcFailure(status, worker_flags_);
  result->stored.clear();
  for (const v1::BoundaryInfo& boundary : response.boundaries()) {
    const bool wanted =
        std::binary_search(result->wanted.begin(), result->wanted.end(), boundary.boundary());
    if (!wanted) continue;
    if (boundary.usable()) {
      result->stored.push_back(boundary.boundary());
    } else {
      result->note = absl::StrCat("boundary ", boundary.boundary(), ": ", boundary.reason());
    }
  }
  if (result->complete()) result->note.clear();
  return response;
}

absl::Status Warmer::Prefill(const WarmEntry& entry, WarmResult* result) {
  v1::PrefillRequest request;
  *request.mutable_prompt() = entry.prompt;
  request.set_durability(durability_);
  v1::PrefillResponse response;
  grpc::ClientContext context;
  const grpc::Status status = worker_->Prefill(&context, request, &response);
  if (!status.ok()) return RpcFailure(status, worker_flags_);
  result->computed_tokens = response.computed_tokens();
  result->note = response.published().note();
  return absl::OkStatus();
}

absl::Status Warmer::Pin(const v1::ExplainResponse& explained, WarmResult* result) {
  assert(store_ != nullptr);
  for (const v1::BoundaryInfo& boundary : explained.boundaries()) {
    if (boundary.boundary() != result->stored.back()) continue;
    if (boundary.restore_point_id().empty()) continue;
    result->pinned = boundary.pinned();
    if (result->pinned) return absl::OkStatus();
    v1::PinRequest request;
    request.set_restore_point_id(boundary.restore_point_id());
    v1::PinResponse response;
    grpc::ClientContext context;
    const grpc::Status status = store_->Pin(&context, request, &response);
    if (!status.ok()) return RpcFailure(status, store_flags_);
    result->pinned = true;
    return absl::OkStatus();
  }
  result->note = absl::StrCat("boundary ", result->stored.back(), " has no restore point to pin");
  return absl::OkStatus();
}

}  // namespace hearth
