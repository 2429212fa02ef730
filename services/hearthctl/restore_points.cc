#include "services/hearthctl/restore_points.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/fingerprint.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr size_t kIdDigits = 2 * sizeof(Digest);

bool IsWhole(const std::string& wanted) { return wanted.size() == kIdDigits; }

// In lower case.
absl::StatusOr<std::string> CheckId(const std::string& text) {
  std::string wanted = absl::AsciiStrToLower(text);
  const bool is_hex = std::all_of(wanted.begin(), wanted.end(),
                                  [](unsigned char c) { return absl::ascii_isxdigit(c); });
  if (is_hex && wanted.size() >= kMinIdDigits && wanted.size() <= kIdDigits) return wanted;
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a restore point: give ", kMinIdDigits, " to ", kIdDigits,
                   " hexadecimal digits, as hearthctl ls prints them"));
}

// It names a restore point, stored or not.
absl::StatusOr<std::string> WholeId(const std::string& wanted) {
  auto digest = DigestFromHex(wanted);
  if (!digest.ok()) return digest.status();
  return std::string(digest->begin(), digest->end());
}

absl::StatusOr<std::string> OnlyOne(const std::vector<v1::RestorePointInfo>& points,
                                    const std::string& where, const std::string& wanted) {
  std::vector<std::string> found;
  for (const v1::RestorePointInfo& point : points) {
    if (absl::StartsWith(HexText(point.restore_point_id()), wanted)) {
      found.push_back(point.restore_point_id());
    }
  }
  if (found.size() == 1) return found.front();
  return absl::NotFoundError(
      absl::StrCat(where, ": ", found.size(), " restore points begin with ", wanted,
                   found.empty() ? "; see hearthctl ls" : "; give more digits"));
}

}  // namespace

absl::StatusOr<std::vector<v1::RestorePointInfo>> ListRestorePoints(v1::CacheStore::Stub* stub,
                                                                    const PeerFlags& store) {
  grpc::ClientContext context;
  v1::ListRequest request;
  request.set_tenant(store.tenant);
  auto reader = stub->List(&context, request);
  std::vector<v1::RestorePointInfo> points;
  v1::RestorePointInfo point;
  while (reader->Read(&point)) points.push_back(point);
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return RpcFailure(status, store);
  return points;
}

absl::StatusOr<std::string> ResolveId(v1::CacheStore::Stub* stub, const PeerFlags& store,
                                      const std::string& text) {
  auto wanted = CheckId(text);
  if (!wanted.ok()) return wanted.status();
  if (IsWhole(*wanted)) return WholeId(*wanted);
  auto points = ListRestorePoints(stub, store);
  if (!points.ok()) return points.status();
  return OnlyOne(*points, absl::StrCat("store at ", store.address), *wanted);
}

absl::StatusOr<std::string> ResolveId(const std::vector<v1::RestorePointInfo>& points,
                                      const std::string& where, const std::string& text) {
  auto wanted = CheckId(text);
  if (!wanted.ok()) return wanted.status();
  return IsWhole(*wanted) ? WholeId(*wanted) : OnlyOne(points, where, *wanted);
}

}  // namespace hearth
