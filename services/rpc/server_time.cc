#include "services/rpc/server_time.h"

#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace hearth {

void SendServerTime(absl::Time now, grpc::ServerContextBase* context) {
  context->AddInitialMetadata(kServerTimeKey, absl::StrCat(absl::ToUnixMillis(now)));
}

std::optional<absl::Time> ServerTimeOf(const grpc::ClientContext& context) {
  const auto& metadata = context.GetServerInitialMetadata();
  const auto sent = metadata.find(kServerTimeKey);
  int64_t ms = 0;
  if (sent == metadata.end()) return std::nullopt;
  if (!absl::SimpleAtoi(std::string(sent->second.data(), sent->second.size()), &ms)) {
    return std::nullopt;
  }
  return absl::FromUnixMillis(ms);
}

}  // namespace hearth
