#include "services/rpc/proto_conversion.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::StatusOr<FingerprintField> FieldFromProto(const v1::FingerprintField& proto) {
  FingerprintField field;
  field.name = proto.name();
  switch (proto.value_case()) {
    case v1::FingerprintField::kInteger:
      field.value = static_cast<uint64_t>(proto.integer());
      return field;
    case v1::FingerprintField::kNumber:
      field.value = proto.number();
      return field;
    case v1::FingerprintField::kText:
      field.value = proto.text();
      return field;
    case v1::FingerprintField::VALUE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("fingerprint.fields: \"", field.name, "\" has no value"));
}

}  // namespace

v1::Tier ToProto(Tier tier) { return static_cast<v1::Tier>(tier); }
v1::Durability ToProto(Durability durability) { return static_cast<v1::Durability>(durability); }
v1::LayerGroup ToProto(LayerGroup group) { return static_cast<v1::LayerGroup>(group); }

Tier FromProto(v1::Tier tier) {
  return v1::Tier_IsValid(tier) ? static_cast<Tier>(tier) : Tier::kNone;
}

absl::StatusOr<Durability> FromProto(v1::Durability durability) {
  if (!v1::Durability_IsValid(durability)) {
    return UnknownValue("durability", durability, v1::Durability_MAX);
  }
  return static_cast<Durability>(durability);
}

absl::StatusOr<LayerGroup> FromProto(v1::LayerGroup group) {
  if (!v1::LayerGroup_IsValid(group)) {
    return absl::InvalidArgumentError(
        absl::StrCat("objects.group: must be a known layer group; got ", static_cast<int>(group)));
  }
  return static_cast<LayerGroup>(group);
}

void DigestToProto(const Digest& digest, v1::Fingerprint* out) {
  const absl::string_view bytes = DigestBytes(digest);
  out->set_digest(bytes.data(), bytes.size());
}

void ToProto(const Fingerprint& fingerprint, v1::Fingerprint* out) {
  DigestToProto(fingerprint.digest(), out);
  for (const FingerprintField& field : fingerprint.fields()) {
    v1::FingerprintField* proto = out->add_fields();
    proto->set_name(field.name);
    if (const auto* integer = std::get_if<uint64_t>(&field.value)) {
      proto->set_integer(*integer);
    } else if (const auto* number = std::get_if<double>(&field.value)) {
      proto->set_number(*number);
    } else {
      proto->set_text(std::get<std::string>(field.value));
    }
  }
}

absl::StatusOr<Fingerprint> FromProto(const v1::Fingerprint& proto) {
  if (proto.fields_size() == 0) {
    return absl::InvalidArgumentError(
        "fingerprint.fields: must not be empty; send the readable fields");
  }
  if (static_cast<size_t>(proto.fields_size()) > kMaxFingerprintFields) {
    return absl::InvalidArgumentError(absl::StrCat("fingerprint.fields: must have at most ",
                                                   kMaxFingerprintFields, " fields; got ",
                                                   proto.fields_size()));
  }
  std::vector<FingerprintField> fields;
  fields.reserve(proto.fields_size());
  for (const v1::FingerprintField& field : proto.fields()) {
    absl::StatusOr<FingerprintField> parsed = FieldFromProto(field);
    if (!parsed.ok()) return parsed.status();
    fields.push_back(*std::move(parsed));
  }
  absl::StatusOr<Fingerprint> fingerprint = Fingerprint::Create(std::move(fields));
  if (!fingerprint.ok()) return fingerprint.status();
  if (!proto.digest().empty() && proto.digest() != DigestBytes(fingerprint->digest())) {
    return absl::InvalidArgumentError(
        "fingerprint.digest: must be the digest of fingerprint.fields, " +
        DigestHex(fingerprint->digest()));
  }
  return fingerprint;
}

absl::StatusOr<Digest> DigestFromProto(const v1::Fingerprint& proto) {
  if (proto.fields_size() > 0) {
    absl::StatusOr<Fingerprint> fingerprint = FromProto(proto);
    if (!fingerprint.ok()) return fingerprint.status();
    return fingerprint->digest();
  }
  if (proto.digest().size() != Digest{}.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fingerprint.digest: must have ", Digest{}.size(), " bytes; got ", proto.digest().size()));
  }
  return DigestFromBytes(proto.digest());
}

void ToProto(const ObjectId& id, v1::ObjectRef* out) {
  out->set_begin(id.begin);
  out->set_tokens(id.tokens);
  out->set_group(ToProto(id.group));
}

absl::StatusOr<ObjectId> ObjectIdFromProto(const v1::ObjectRef& proto) {
  absl::StatusOr<LayerGroup> group = FromProto(proto.group());
  if (!group.ok()) return group.status();
  if (proto.tokens() == 0 || proto.tokens() > kMaxChunkTokens ||
      proto.begin() > kMaxPromptTokens - proto.tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "objects: a segment must have 1 to ", kMaxChunkTokens, " tokens and end at or before ",
        kMaxPromptTokens, "; got [", proto.begin(), ", +", proto.tokens(), ")"));
  }
  return ObjectId{proto.begin(), proto.tokens(), *group};
}

int SliceIndex(const std::vector<uint32_t>& group_layers, uint32_t layer) {
  const auto at = std::lower_bound(group_layers.begin(), group_layers.end(), layer);
  if (at == group_layers.end() || *at != layer) return -1;
  return static_cast<int>(at - group_layers.begin());
}

absl::Status UnknownValue(const char* field, int value, int last) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": must be 0 to ", last, "; got ", value));
}

std::string WhyUnusable(const v1::BoundaryInfo& boundary) {
  if (boundary.usable()) return "";
  // The last window of tokens was never stored for the local layers: the store keeps it only at
  // boundaries that a request marked as worth keeping.
  if (boundary.reason_code() == "tail_gone" && boundary.removed_by().empty()) {
    return "not kept: no request asked for this boundary";
  }
  return boundary.reason();
}

absl::Status CheckMessageBytes(size_t bytes) {
  if (bytes <= kMaxMessageBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("message: must have at most ", kMaxMessageBytes, " bytes (3 MiB); got ", bytes));
}

}  // namespace hearth
