#include "services/hearthctl/warmer.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "services/hearthctl/progress_line.h"

namespace hearth {
namespace {

void Append(const std::string& more, std::string* note) {
  if (!note->empty() && !more.empty()) *note += "; ";
  *note += more;
}

// REQUIRES: boundaries ascend.
bool Contains(const std::vector<uint32_t>& boundaries, uint32_t boundary) {
  return std::binary_search(boundaries.begin(), boundaries.end(), boundary);
}

// The highest boundary that is wanted and missing. Empty when there is none.
std::string WhyMissing(const v1::ExplainResponse& explained, const WarmResult& result) {
  std::string why;
  for (const v1::BoundaryInfo& boundary : explained.boundaries()) {
    if (!Contains(result.wanted, boundary.boundary()) || boundary.usable()) continue;
    why = absl::StrCat("boundary ", boundary.boundary(), ": ", boundary.reason());
  }
  return why;
}

}  // namespace

absl::Status Warmer::Warm(const WarmEntry& entry, bool pin, WarmResult* result) {
  absl::Status status = FindWanted(entry, result);
  if (!status.ok()) return status;
  if (result->wanted.empty()) {
    result->note = absl::StrCat("shorter than one chunk of ", chunk_tokens_,
                                " tokens and without a breakpoint: nothing to keep");
    return absl::OkStatus();
  }
  auto explained = FindStored(entry, result);
  if (!explained.ok()) return explained.status();
  // With a time to live or a hint, prompts that are stored already too: theirs is renewed.
  if (!result->complete() || entry.ttl_s > 0 || entry.hint.is_given()) {
    status = Prefill(entry, result);
    if (!status.ok()) return status;
    explained = FindStored(entry, result);
    if (!explained.ok()) return explained.status();
  }
  if (result->complete()) {
    result->note.clear();
  } else {
    Append(WhyMissing(*explained, *result), &result->note);
  }
  if (pin) PinStored(*explained, result);
  return absl::OkStatus();
}

absl::Status Warmer::FindWanted(const WarmEntry& entry, WarmResult* result) {
  v1::TokenizeRequest request;
  *request.mutable_prompt() = entry.prompt;
  auto response = Call(worker_, &v1::Inference::Stub::Tokenize, request, worker_flags_);
  if (!response.ok()) return response.status();
  result->prompt_tokens = static_cast<uint32_t>(response->token_ids_size());
  std::vector<uint32_t> cuts(response->breakpoints().begin(), response->breakpoints().end());
  std::sort(cuts.begin(), cuts.end());
  result->wanted = KeptBoundaries(result->prompt_tokens, cuts, 0, 0, chunk_tokens_);
  result->knows_wanted = true;
  return absl::OkStatus();
}

absl::StatusOr<v1::ExplainResponse> Warmer::FindStored(const WarmEntry& entry, WarmResult* result) {
  v1::ExplainInputRequest request;
  *request.mutable_prompt() = entry.prompt;
  request.set_adapter(entry.adapter);
  auto response = Call(worker_, &v1::Inference::Stub::Explain, request, worker_flags_);
  if (!response.ok()) return response.status();
  result->stored.clear();
  for (const v1::BoundaryInfo& boundary : response->boundaries()) {
    if (boundary.usable() && Contains(result->wanted, boundary.boundary())) {
      result->stored.push_back(boundary.boundary());
    }
  }
  return response;
}

absl::Status Warmer::Prefill(const WarmEntry& entry, WarmResult* result) {
  v1::PrefillRequest request;
  *request.mutable_prompt() = entry.prompt;
  request.set_durability(durability_);
  request.set_ttl_s(entry.ttl_s);
  request.set_keep_s(entry.hint.keep_s);
  request.set_priority(entry.hint.priority);
  request.set_adapter(entry.adapter);
  ProgressLine progress(console_);
  request.set_report_progress(progress.is_seen());
  grpc::ClientContext context;
  const auto reader = worker_->Prefill(&context, request);
  v1::PrefillResponse response;
  while (reader->Read(&response)) {
    if (!response.has_progress()) continue;
    progress.Show(response.progress().ready_tokens(), response.prompt_tokens());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return RpcFailure(status, worker_flags_);
  result->computed_tokens = response.computed_tokens();
  result->note = response.published().note();
  return absl::OkStatus();
}

void Warmer::PinStored(const v1::ExplainResponse& explained, WarmResult* result) {
  for (const v1::BoundaryInfo& boundary : explained.boundaries()) {
    if (!Contains(result->stored, boundary.boundary())) continue;
    const absl::Status status = Pin(boundary);
    if (status.ok()) {
      result->pinned.push_back(boundary.boundary());
    } else {
      Append(absl::StrCat("not pinned at boundary ", boundary.boundary(), ": ", status.message()),
             &result->pin_failure);
    }
  }
}

absl::Status Warmer::Pin(const v1::BoundaryInfo& boundary) {
  assert(store_ != nullptr);
  if (boundary.pinned()) return absl::OkStatus();
  if (boundary.restore_point_id().empty()) {
    return absl::NotFoundError("it has no restore point of its own");
  }
  v1::PinRequest request;
  request.set_tenant(store_flags_.tenant);
  request.set_restore_point_id(boundary.restore_point_id());
  return Call(store_, &v1::CacheStore::Stub::Pin, request, store_flags_).status();
}

}  // namespace hearth
