#include "services/rpc/call_metadata.h"

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "proto/plain_name.h"
#include "services/rpc/trace_span.h"

namespace hearth {

std::string NewRequestId() {
  thread_local absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

void SendRequestId(const std::string& id, grpc::ClientContext* context) {
  if (IsTokenText(id)) context->AddMetadata(kRequestIdKey, id);
}

bool IsTokenText(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return c > 0x20 && c < 0x7f; });
}

std::string RequestIdFrom(absl::string_view sent) {
  const bool is_taken = IsPlainName(sent) && !sent.empty() && sent.size() <= kMaxRequestIdBytes;
  return is_taken ? std::string(sent) : NewRequestId();
}

CallIds CallIdsOf(const grpc::ServerContextBase& context) {
  const auto sent = [&metadata = context.client_metadata()](const char* key) -> absl::string_view {
    const auto at = metadata.find(key);
    if (at == metadata.end()) return "";
    return {at->second.data(), at->second.size()};
  };
  return {RequestIdFrom(sent(kRequestIdKey)), std::string(sent(kTraceparentKey))};
}

}  // namespace hearth
