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

// A number, or a text: a size, or with `is_time` a time.
absl::StatusOr<uint64_t> NumberFrom(JsonValue value, bool is_time) {
  if (!value.is_string()) {
    if (auto number = value.Count(0, UINT64_MAX); number.ok()) return number;
  } else if (const std::string text(*value.Text()); !is_time) {
    if (auto bytes = ParseByteSize(text); bytes.ok()) return bytes;
  } else if (const auto time = ParseFlagDuration(text); time.ok()) {
    return static_cast<uint64_t>(absl::ToInt64Seconds(*time));
  }
  return value.Bad(is_time ? "whole seconds, or a time like \"36h\""
                           : "a whole number, or a size like \"10GiB\"");
}

absl::StatusOr<TenantQuota> QuotaFrom(JsonValue json) {
  if (absl::Status status = json.CheckObject(); !status.ok()) return status;
  TenantQuota quota;
  struct Field {
    const char* name;
    uint64_t* place;
    bool is_time = false;
  };
  const Field fields[] = {{"max_bytes", &quota.max_bytes},
                          {"max_objects", &quota.max_objects},
                          {"max_pinned_bytes", &quota.max_pinned_bytes},
                          {"floor_bytes", &quota.floor_bytes},
                          {"default_ttl_s", &quota.default_ttl_s, true},
                          {"max_ttl_s", &quota.max_ttl_s, true}};
  for (const JsonValue given : json.fields()) {
    const Field* field =
        std::find_if(std::begin(fields), std::end(fields),
                     [&given](const Field& known) { return given.name() == known.name; });
    if (field == std::end(fields)) {
      return json.Refuse(absl::StrCat("unknown key ", Quoted(given.name())));
    }
    absl::StatusOr<uint64_t> amount = NumberFrom(given, field->is_time);
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
          absl::StrCat(Quoted(field.name()), " is neither \"default\" nor an object \"tenants\""));
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
