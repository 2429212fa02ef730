#include "services/store/tenants_file.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "services/cli/command_line.h"
#include "services/rpc/access_files.h"
#include "services/serving/flags.h"

namespace hearth {
namespace {

using ParsedJson = nlohmann::json;

absl::StatusOr<uint64_t> AmountFrom(const ParsedJson& value, const std::string& where) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_string()) {
    absl::StatusOr<uint64_t> bytes = ParseByteSize(value.get_ref<const std::string&>());
    if (bytes.ok()) return bytes;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": must be a whole number, or a size like \"10GiB\""));
}

absl::StatusOr<uint64_t> SecondsFrom(const ParsedJson& value, const std::string& where) {
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_string()) {
    const absl::StatusOr<absl::Duration> time =
        ParseFlagDuration(value.get_ref<const std::string&>());
    if (time.ok()) return static_cast<uint64_t>(absl::ToInt64Seconds(*time));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": must be whole seconds, or a time like \"36h\""));
}

absl::StatusOr<TenantQuota> QuotaFrom(const ParsedJson& json, const std::string& where) {
  if (!json.is_object()) return absl::InvalidArgumentError(where + ": must be an object");
  TenantQuota quota;
  struct Field {
    const char* name;
    uint64_t* place;
    absl::StatusOr<uint64_t> (*parse)(const ParsedJson&, const std::string&);
  };
  const Field fields[] = {{"max_bytes", &quota.max_bytes, &AmountFrom},
                          {"max_objects", &quota.max_objects, &AmountFrom},
                          {"max_pinned_bytes", &quota.max_pinned_bytes, &AmountFrom},
                          {"floor_bytes", &quota.floor_bytes, &AmountFrom},
                          {"default_ttl_s", &quota.default_ttl_s, &SecondsFrom},
                          {"max_ttl_s", &quota.max_ttl_s, &SecondsFrom}};
  for (const auto& [key, value] : json.items()) {
    const Field* field =
        std::find_if(std::begin(fields), std::end(fields),
                     [&name = key](const Field& known) { return name == known.name; });
    if (field == std::end(fields)) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": unknown key \"", key, "\""));
    }
    absl::StatusOr<uint64_t> amount = field->parse(value, absl::StrCat(where, ".", key));
    if (!amount.ok()) return amount.status();
    *field->place = *amount;
  }
  return quota;
}

}  // namespace

absl::StatusOr<TenantQuotas> ReadTenantsFile(const std::string& path) {
  TenantQuotas quotas;
  if (path.empty()) return quotas;
  absl::StatusOr<std::string> text = ReadFlagFile("tenants-file", path);
  if (!text.ok()) return text.status();
  const ParsedJson json = ParsedJson::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(path + ": must be a JSON object");
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "default") {
      absl::StatusOr<TenantQuota> quota = QuotaFrom(value, path + ": default");
      if (!quota.ok()) return quota.status();
      quotas.others = *quota;
    } else if (key == "tenants" && value.is_object()) {
      for (const auto& [tenant, entry] : value.items()) {
        absl::StatusOr<TenantQuota> quota =
            QuotaFrom(entry, absl::StrCat(path, ": tenants.", tenant));
        if (!quota.ok()) return quota.status();
        quotas.by_tenant[tenant] = *quota;
      }
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": \"", key, "\" is neither \"default\" nor an object \"tenants\""));
    }
  }
  return quotas;
}

}  // namespace hearth
