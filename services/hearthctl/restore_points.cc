#include "services/hearthctl/restore_points.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/fingerprint.h"
#include "services/hearthctl/json_text.h"

namespace hearth {
namespace {

constexpr size_t kIdDigits = 2 * sizeof(Digest);

}  // namespace

CLI::Option* AddPoint(CLI::App* command, std::string* id) {
  return command->add_option("id", *id, "id of a restore point, or its first digits (see ls)");
}

absl::StatusOr<std::vector<v1::RestorePointInfo>> ListRestorePoints(v1::CacheStore::Stub* stub,
                                                                    const PeerFlags& store,
                                                                    std::string* tenant) {
  grpc::ClientContext context;
  v1::ListRequest request;
  request.set_tenant(store.tenant);
  auto reader = stub->List(&context, request);
  std::vector<v1::RestorePointInfo> points;
  v1::RestorePointInfo point;
  while (reader->Read(&point)) points.push_back(point);
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return RpcFailure(status, store);
  const auto& metadata = context.GetServerInitialMetadata();
  const auto named = metadata.find("hearth-tenant-bin");
  if (tenant != nullptr && named != metadata.end()) {
    tenant->assign(named->second.data(), named->second.size());
  }
  return points;
}

absl::StatusOr<std::string> ResolveId(v1::CacheStore::Stub* stub, const PeerFlags& store,
                                      const std::string& text) {
  const std::string wanted = absl::AsciiStrToLower(text);
  const bool is_hex = std::all_of(wanted.begin(), wanted.end(),
                                  [](unsigned char c) { return absl::ascii_isxdigit(c); });
  if (!is_hex || wanted.size() < kMinIdDigits || wanted.size() > kIdDigits) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not the id of a restore point: give ", kMinIdDigits, " to ",
                     kIdDigits, " hexadecimal digits of an id that hearthctl ls prints"));
  }
  // A full id needs no lookup in the store.
  if (wanted.size() == kIdDigits) return absl::HexStringToBytes(wanted);
  const auto points = ListRestorePoints(stub, store);
  if (!points.ok()) return points.status();
  std::vector<std::string> found;
  for (const v1::RestorePointInfo& point : *points) {
    if (absl::StartsWith(HexText(point.restore_point_id()), wanted)) {
      found.push_back(point.restore_point_id());
    }
  }
  if (found.size() == 1) return found.front();
  return absl::NotFoundError(
      absl::StrCat("store at ", store.address, ": ", found.size(), " restore points begin with ",
                   wanted, found.empty() ? "; see hearthctl ls" : "; give more digits"));
}

}  // namespace hearth
