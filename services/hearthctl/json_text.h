// Formats values for people and for programs: JSON lines, sizes, ages, identifiers.
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
// "28.3 MB" (decimal), "512 B".
std::string SizeText(uint64_t bytes);
// "12 s", "3.4 min", "5.0 h", "2.1 d".
std::string AgeText(double age_s);
std::string MsText(double ms);

// An enum's value in lower case, without the enum's name in front: "disk" of TIER_DISK.
std::string EnumText(const google::protobuf::EnumDescriptor& type, int number);
std::string TierText(v1::Tier tier);
// The level reached: "none", "memory", "disk", "sync".
std::string DurabilityText(v1::Durability durability);

// A message's fields under their names: bytes and digests in hexadecimal, enums as EnumText. An
// optional number that is absent is null, a message that is absent is left out.
Json MessageJson(const google::protobuf::Message& message);
// Gives the field `from` of an object another name.
void RenameField(const char* from, const char* to, Json* json);
Json RestorePointJson(const v1::RestorePointInfo& point);

// Prints one line; returns kExitOk.
int PrintJson(const Json& json, Console& console);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_JSON_TEXT_H_
