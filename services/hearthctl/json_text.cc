#include "services/hearthctl/json_text.h"

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

std::string Fixed(double value, const char* unit) {
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : 1, value, unit);
}

}  // namespace

std::string HexText(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

std::string SizeText(uint64_t bytes) {
  if (bytes < 1000) return std::to_string(bytes) + " B";
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes) / 1000;
  int unit = 0;
  while (value >= 1000 && unit < 3) {
    value /= 1000;
    ++unit;
  }
  return Fixed(value, kUnits[unit]);
}

std::string AgeText(double age_s) {
  if (age_s < 120) return Fixed(age_s, "s");
  if (age_s < 7200) return Fixed(age_s / 60, "min");
  if (age_s < 172800) return Fixed(age_s / 3600, "h");
  return Fixed(age_s / 86400, "d");
}

std::string MsText(double ms) { return ms < 10000 ? Fixed(ms, "ms") : Fixed(ms / 1000, "s"); }

std::string TierText(v1::Tier tier) { return TierName(FromProto(tier)); }

std::string DurabilityText(v1::Durability durability) {
  // Nothing was stored: no level was reached.
  if (durability == v1::DURABILITY_DEFAULT) return "none";
  const auto known = FromProto(durability);
  return known.ok() ? DurabilityName(*known) : "unknown";
}

Json RestorePointJson(const v1::RestorePointInfo& point) {
  return Json{{"restore_point_id", HexText(point.restore_point_id())},
              {"tokens", point.tokens()},
              {"bytes", point.bytes()},
              {"tier", TierText(point.tier())},
              {"durable", point.durable()},
              {"pinned", point.pinned()},
              {"age_s", point.age_s()},
              {"expires_in_s", point.has_expires_in_s() ? Json(point.expires_in_s()) : Json()},
              {"kept_s", point.kept_s()},
              {"priority", point.priority()},
              {"hits", point.hits()},
              {"fingerprint", HexText(point.fingerprint_digest())},
              {"last_token_ids", std::vector<uint32_t>(point.last_token_ids().begin(),
                                                       point.last_token_ids().end())}};
}

int PrintJson(const Json& json, Console& console) {
  console.out << Raw{JsonLine(json)} << std::endl;
  return kExitOk;
}

}  // namespace hearth
