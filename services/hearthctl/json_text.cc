#include "services/hearthctl/json_text.h"

#include <google/protobuf/descriptor.h>

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "services/rpc/proto_conversion.h"

namespace hearth {
namespace {

std::string Fixed(double value, const char* unit) {
  return absl::StrFormat("%.*f %s", value < 10 ? 2 : 1, value, unit);
}

// Returns the value of a field as JSON; for a repeated field, the value at index `at`.
Json ValueJson(const google::protobuf::Message& message,
               const google::protobuf::FieldDescriptor* field, int at) {
  const google::protobuf::Reflection& values = *message.GetReflection();
  const bool one = !field->is_repeated();
  switch (field->cpp_type()) {
    case field->CPPTYPE_BOOL:
      return one ? values.GetBool(message, field) : values.GetRepeatedBool(message, field, at);
    case field->CPPTYPE_INT32:
      return one ? values.GetInt32(message, field) : values.GetRepeatedInt32(message, field, at);
    case field->CPPTYPE_INT64:
      return one ? values.GetInt64(message, field) : values.GetRepeatedInt64(message, field, at);
    case field->CPPTYPE_UINT32:
      return one ? values.GetUInt32(message, field) : values.GetRepeatedUInt32(message, field, at);
    case field->CPPTYPE_UINT64:
      return one ? values.GetUInt64(message, field) : values.GetRepeatedUInt64(message, field, at);
    case field->CPPTYPE_FLOAT:
      return one ? values.GetFloat(message, field) : values.GetRepeatedFloat(message, field, at);
    case field->CPPTYPE_DOUBLE:
      return one ? values.GetDouble(message, field) : values.GetRepeatedDouble(message, field, at);
    case field->CPPTYPE_ENUM:
      return EnumText(*field->enum_type(), one ? values.GetEnumValue(message, field)
                                               : values.GetRepeatedEnumValue(message, field, at));
    case field->CPPTYPE_MESSAGE:
      return MessageJson(one ? values.GetMessage(message, field)
                             : values.GetRepeatedMessage(message, field, at));
    case field->CPPTYPE_STRING:
      break;
  }
  const std::string text =
      one ? values.GetString(message, field) : values.GetRepeatedString(message, field, at);
  return field->type() == field->TYPE_BYTES ? HexText(text) : text;
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

std::string EnumText(const google::protobuf::EnumDescriptor& type, int number) {
  const auto* const value = type.FindValueByNumber(number);
  if (value == nullptr || absl::EndsWith(value->name(), "_UNSPECIFIED")) return "unknown";
  std::string prefix;
  for (const char c : type.name()) {
    if (absl::ascii_isupper(static_cast<unsigned char>(c)) && !prefix.empty()) prefix += '_';
    prefix += absl::ascii_toupper(static_cast<unsigned char>(c));
  }
  return absl::AsciiStrToLower(absl::StripPrefix(value->name(), prefix + "_"));
}

std::string TierText(v1::Tier tier) { return EnumText(*v1::Tier_descriptor(), tier); }

std::string DurabilityText(v1::Durability durability) {
  // The default stands for "nothing was stored", so no durability was reached.
  if (durability == v1::DURABILITY_DEFAULT) return "none";
  const auto known = FromProto(durability);
  return known.ok() ? DurabilityName(*known) : "unknown";
}

Json MessageJson(const google::protobuf::Message& message) {
  if (message.GetDescriptor() == v1::Fingerprint::descriptor()) {
    return HexText(static_cast<const v1::Fingerprint&>(message).digest());
  }
  const google::protobuf::Reflection& values = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  Json json = Json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = type.field(i);
    const bool is_message = field->cpp_type() == field->CPPTYPE_MESSAGE;
    if (!field->is_repeated() && is_message && !values.HasField(message, field)) continue;
    // In tables and command arguments this field is called "id".
    Json& place = json[field->name() == "restore_point_id" ? "id" : field->name()];
    if (field->is_map()) {
      std::map<std::string, Json> sorted;
      for (int at = 0; at < values.FieldSize(message, field); ++at) {
        const Json entry = MessageJson(values.GetRepeatedMessage(message, field, at));
        sorted[entry["key"].get<std::string>()] = entry["value"];
      }
      place = sorted;
    } else if (field->is_repeated()) {
      place = Json::array();
      for (int at = 0; at < values.FieldSize(message, field); ++at) {
        place.push_back(ValueJson(message, field, at));
      }
    } else if (!field->has_presence() || values.HasField(message, field)) {
      place = ValueJson(message, field, -1);
    }
  }
  return json;
}

void RenameField(const char* from, const char* to, Json* json) {
  (*json)[to] = std::move((*json)[from]);
  json->erase(from);
}

Json RestorePointJson(const v1::RestorePointInfo& point) {
  Json json = MessageJson(point);
  RenameField("fingerprint_digest", "fingerprint", &json);
  return json;
}

int PrintJson(const Json& json, Console& console) {
  console.out << Raw{JsonLine(json)} << std::endl;
  return kExitOk;
}

}  // namespace hearth
