#include "services/store/tenants_file.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "services/cli/command_line.h"
#include "services/rpc/access_files.h"
#include "services/serving/flags.h"
#include "services/serving/json_reader.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

absl::StatusOr<uint64_t> AmountFrom(JsonValue value) {
  if (value.is_string()) {
    absl::StatusOr<uint64_t> bytes = ParseByteSize(std::string(*value.Text()));
    if (bytes.ok()) return bytes;
  } else if (absl::StatusOr<uint64_t> count = value.Count(0, UINT64_MAX); count.ok()) {
    return count;
  }
  return value.Bad("a whole number, or a size like \"10GiB\"");
}

absl::StatusOr<uint64_t> SecondsFrom(JsonValue value) {
  if (value.is_string()) {
    const absl::StatusOr<absl::Duration> time = ParseFlagDuration(std::string(*value.Text()));
    if (time.ok()) return static_cast<uint64_t>(absl::ToInt64Seconds(*time));
  } else if (absl::StatusOr<uint64_t> count = value.Count(0, UINT64_MAX); count.ok()) {
    return count;
  }
  return value.Bad("whole seconds, or a time like \"36h\"");
}

absl::StatusOr<TenantQuota> QuotaFrom(JsonValue json) {
  if (absl::Status status = json.CheckObject(); !status.ok()) return status;
  TenantQuota quota;
  struct Field {
    const char* name;
    uint64_t* place;
    absl::StatusOr<uint64_t> (*parse)(JsonValue);
  };
  const Field fields[] = {{"max_bytes", &quota.max_bytes, &AmountFrom},
                          {"max_objects", &quota.max_objects, &AmountFrom},
                          {"max_pinned_bytes", &quota.max_pinned_bytes, &AmountFrom},
                          {"floor_bytes", &quota.floor_bytes, &AmountFrom},
                          {"default_ttl_s", &quota.default_ttl_s, &SecondsFrom},
                          {"max_ttl_s", &quota.max_ttl_s, &SecondsFrom}};
  for (const JsonValue given : json.fields()) {
    const Field* field =
        std::find_if(std::begin(fields), std::end(fields),
                     [&given](const Field& known) { return given.name() == known.name; });
    if (field == std::end(fields)) {
      return json.Refuse(absl::StrCat("unknown key ", Quoted(given.name())));
    }
    absl::StatusOr<uint64_t> amount = field->parse(given);
    if (!amount.ok()) return amount.status();
    *field->place = *amount;
  }
  return quota;
}

absl::StatusOr<TenantQuotas> QuotasFrom(JsonValue root) {
  TenantQuotas quotas;
  if (!root.is_object()) return root.Refuse("must be a JSON object");
  for (const JsonValue field : root.fields()) {
    if (field.name() == "default") {
      absl::StatusOr<TenantQuota> quota = QuotaFrom(field);
      if (!quota.ok()) return quota.status();
      quotas.others = *quota;
    } else if (field.name() == "tenants" && field.is_object()) {
      for (const JsonValue tenant : field.fields()) {
        absl::StatusOr<TenantQuota> quota = QuotaFrom(tenant);
        if (!quota.ok()) return quota.status();
        quotas.by_tenant[std::string(tenant.name())] = *quota;
      }
    } else {
      return root.Refuse(
          absl::StrCat(Quoted(field.name()),
                       " is not valid; known keys: \"default\" and \"tenants\", both objects"));
    }
  }
  return quotas;
}

}  // namespace

absl::StatusOr<TenantQuotas> ReadTenantsFile(const std::string& path) {
  if (path.empty()) return TenantQuotas();
  absl::StatusOr<std::string> text = ReadFlagFile("tenants-file", path);
  if (!text.ok()) return text.status();
  JsonLimits limits;
  limits.keys = kMaxFileKeys;
  const absl::StatusOr<JsonDocument> json = JsonDocument::Parse(*text, "the file", limits);
  absl::StatusOr<TenantQuotas> quotas = json.ok() ? QuotasFrom(json->root()) : json.status();
  if (quotas.ok()) return quotas;
  return absl::InvalidArgumentError(absl::StrCat(path, ": ", quotas.status().message()));
}

}  // namespace hearth
