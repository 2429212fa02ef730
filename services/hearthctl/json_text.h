// Formats values for people and for programs: JSON lines, sizes, ages, names of enum values.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_JSON_TEXT_H_
#define HEARTH_SERVICES_HEARTHCTL_JSON_TEXT_H_

#include <google/protobuf/message.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/cache_store.pb.h"
#include "services/cli/console.h"
#include "services/serving/json_value.h"

namespace hearth {

std::string HexText(absl::string_view bytes);
// Returns the size as text, such as "28.3 MB" (decimal units) or "512 B".
std::string SizeText(uint64_t bytes);
// Returns the age as text, such as "12.0 s", "3.40 min", "5.00 h" or "2.10 d".
std::string AgeText(double age_s);
std::string MsText(double ms);

// Returns an enum value in lower case without the enum's prefix: "disk" for TIER_DISK.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int number);
std::string TierText(v1::Tier tier);
// Returns the name of a durability: "none", "memory", "disk", "sync" or "shared".
std::string DurabilityText(v1::Durability durability);

// Converts a message to JSON with the field names of the message. Bytes and digests are
// hexadecimal, enum values are EnumText. An absent optional number becomes null; an absent message
// is omitted.
Json MessageJson(const google::protobuf::Message& message);
// Renames the field `from` of a JSON object to `to`.
void RenameField(const char* from, const char* to, Json* json);
Json RestorePointJson(const v1::RestorePointInfo& point);

// Prints the JSON value in one line. Returns kExitOk.
int PrintJson(const Json& json, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_JSON_TEXT_H_
