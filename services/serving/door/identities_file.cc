#include "services/serving/door/identities_file.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using ParsedJson = nlohmann::json;

// A text field of an entry; empty when absent.
absl::StatusOr<std::string> TextOf(const ParsedJson& entry, const char* key,
                                   const std::string& where) {
  const auto it = entry.find(key);
  if (it == entry.end()) return std::string();
  if (!it->is_string() || it->get_ref<const std::string&>().empty()) {
    return absl::InvalidArgumentError(absl::StrCat(where, ".", key, ": must be text"));
  }
  return it->get<std::string>();
}

absl::StatusOr<Role> RoleFrom(const std::string& text, const std::string& where) {
  if (text == "tenant") return Role::kTenant;
  if (text == "worker") return Role::kWorker;
  if (text == "admin") return Role::kAdmin;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ".role: \"", text, "\" is not one of tenant, worker, admin"));
}

// Of one file: remembers what entries must not share.
struct Parser {
  absl::StatusOr<std::vector<IdentityEntry>> Parse(const std::string& text);
  absl::StatusOr<IdentityEntry> ParseEntry(const ParsedJson& item, const std::string& where);

  const std::string file;
  std::string public_tenant;
  std::set<std::string> names, certificates;
  std::set<Digest> tokens;
};

absl::StatusOr<std::vector<IdentityEntry>> Parser::Parse(const std::string& text) {
  const ParsedJson json = ParsedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("identities") || !json["identities"].is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": must be a JSON object {\"identities\": [...]}"));
  }
  for (const auto& [key, value] : json.items()) {
    if (key == "identities" || key == "public_tenant") continue;
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": \"", key, "\" is neither \"identities\" nor \"public_tenant\""));
  }
  absl::StatusOr<std::string> shared = TextOf(json, "public_tenant", file);
  if (shared.ok() && !shared->empty()) {
    const absl::Status status = CheckTenantName(*shared);
    if (!status.ok())
      shared = absl::InvalidArgumentError(absl::StrCat(file, ": ", status.message()));
  }
  if (!shared.ok()) return shared.status();
  public_tenant = *std::move(shared);
  std::vector<IdentityEntry> entries;
  for (const ParsedJson& item : json["identities"]) {
    const std::string where = absl::StrCat(file, ": identities[", entries.size(), "]");
    absl::StatusOr<IdentityEntry> entry = ParseEntry(item, where);
    if (!entry.ok()) return entry.status();
    entries.push_back(*std::move(entry));
  }
  return entries;
}

absl::StatusOr<IdentityEntry> Parser::ParseEntry(const ParsedJson& item, const std::string& where) {
  static const std::set<std::string> kKeys = {"name", "role", "tenant", "token_sha256",
                                              "certificate"};
  const auto refuse = [&where](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(where, why));
  };
  if (!item.is_object()) return refuse(": must be an object");
  std::map<std::string, std::string> fields;
  IdentityEntry entry;
  Identity& identity = entry.identity;
  for (const auto& [key, value] : item.items()) {
    if (key == "publishes_public" && value.is_boolean()) {
      identity.publishes_public = value.get<bool>();
      continue;
    }
    if (key == "publishes_public") return refuse(".publishes_public: must be true or false");
    if (kKeys.count(key) == 0) return refuse(absl::StrCat(": unknown key \"", key, "\""));
    absl::StatusOr<std::string> field = TextOf(item, key.c_str(), where);
    if (!field.ok()) return field.status();
    fields[key] = *std::move(field);
  }
  identity.name = fields["name"];
  identity.public_tenant = public_tenant;
  if (identity.name.empty() || !names.insert(identity.name).second) {
    return refuse(".name: must be there, and only once in the file");
  }
  absl::StatusOr<Role> role = RoleFrom(fields["role"], where);
  if (!role.ok()) return role.status();
  identity.role = *role;
  if (*role == Role::kTenant) identity.tenant = identity.name;
  if (!fields["tenant"].empty()) identity.tenant = fields["tenant"];
  if (absl::Status status = CheckTenantName(identity.tenant); !status.ok()) {
    return refuse(absl::StrCat(": ", status.message()));
  }
  if (identity.publishes_public && public_tenant.empty()) {
    return refuse(".publishes_public: the file has no \"public_tenant\"");
  }
  if (identity.tenant == public_tenant && !identity.publishes_public) {
    return refuse(": its tenant is the public one, and it lacks \"publishes_public\": true");
  }
  entry.certificate = fields["certificate"];
  if (!entry.certificate.empty() && !certificates.insert(entry.certificate).second) {
    return refuse(".certificate: another entry has it, so that it would be nobody's");
  }
  if (!fields["token_sha256"].empty()) {
    absl::StatusOr<Digest> digest = DigestFromHex(fields["token_sha256"]);
    if (!digest.ok()) {
      return refuse(".token_sha256: must be 64 hex digits, as printf %s TOKEN | sha256sum gives");
    }
    if (*digest == Sha256("")) {
      return refuse(
          ".token_sha256: is the digest of nothing, as sha256sum gives for a token file that is "
          "missing or empty; make the token first: head -c 32 /dev/urandom | base64 > token");
    }
    if (!tokens.insert(*digest).second) {
      return refuse(".token_sha256: another entry has it; a token is one caller's");
    }
    entry.token_digest = *digest;
  }
  if (entry.certificate.empty() && !entry.token_digest.has_value()) {
    return refuse(": needs token_sha256 or certificate");
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<IdentityEntry>> ParseIdentities(const std::string& file,
                                                           const std::string& text) {
  return Parser{file, {}, {}, {}, {}}.Parse(text);
}

}  // namespace hearth
