#include "services/store/fleet_page.h"

#include <map>
#include <string>
#include <utility>

#include "services/serving/http/http_names.h"
#include "services/serving/json_value.h"
#include "services/store/store_status.h"

namespace hearth {
namespace {

// Returns whether the peer "ADDRESS:PORT" is a process of this host.
bool IsOnHost(const std::string& peer) {
  const std::string address = peer.substr(0, peer.rfind(':'));
  return Cidr::Parse("127.0.0.0/8")->Contains(address) || Cidr::Parse("::1")->Contains(address);
}

Json WorkersJson(const std::vector<FleetWorker>& workers) {
  Json list = Json::array();
  for (const FleetWorker& worker : workers) {
    const v1::ReportRequest& report = worker.report;
    Json models = Json::array();
    for (const v1::ServedModel& model : report.models()) models.push_back(model.name());
    list.push_back({{"name", report.name()},
                    {"caller", worker.caller},
                    {"address", worker.peer},
                    {"version", report.version()},
                    {"device", report.device()},
                    {"models", std::move(models)},
                    {"connected", worker.is_connected},
                    {"age_s", absl::ToDoubleSeconds(worker.age)},
                    {"running", report.running()},
                    {"places", report.places()},
                    {"queued", report.queued()},
                    {"prompt_tokens", report.prompt_tokens()},
                    {"cached_tokens", report.cached_tokens()}});
  }
  return list;
}

struct Model {
  std::string name;
  uint32_t workers = 0;  // connected workers that serve it
};

// Returns the models of all workers, keyed by the hexadecimal fingerprint.
std::map<std::string, Model> ModelsOf(const std::vector<FleetWorker>& workers) {
  std::map<std::string, Model> models;
  for (const FleetWorker& worker : workers) {
    for (const v1::ServedModel& served : worker.report.models()) {
      Model& model = models[DigestHex(*DigestFromBytes(served.fingerprint_digest()))];
      // If workers disagree on the name, prefer a connected worker's.
      if (model.name.empty() || worker.is_connected) model.name = served.name();
      if (worker.is_connected) ++model.workers;
    }
  }
  return models;
}

std::string FleetText(StoreAdmin* store, const FleetTable& fleet, bool with_words) {
  const std::vector<FleetWorker> workers = fleet.Workers();
  const std::map<std::string, Model> models = ModelsOf(workers);
  Json json;
  json["shows_prompt_text"] = with_words;
  json["workers"] = WorkersJson(workers);
  json["models"] = Json::array();
  for (const auto& [fingerprint, model] : models) {
    json["models"].push_back(
        {{"name", model.name}, {"fingerprint", fingerprint}, {"workers", model.workers}});
  }
  json["prefixes"] = Json::object();
  for (const RestorePoint& point : store->Hottest(kHottest)) {
    const std::string fingerprint = DigestHex(point.fingerprint);
    const auto model = models.find(fingerprint);
    Json& prefix = json["prefixes"][DigestHex(point.id)];
    prefix = {{"tenant", point.tenant},
              {"model", model == models.end() ? "" : model->second.name},
              {"fingerprint", fingerprint}};
    if (with_words) prefix["words"] = fleet.Words(point.fingerprint, point.first_token_ids);
  }
  return JsonLine(json);
}

}  // namespace

absl::Status CheckFleetReader(const FleetPageOptions& options, const HttpRequest& request) {
  if (options.identities->accepts_anyone()) return absl::OkStatus();
  if (!options.identities->has_admin_token()) {
    return absl::PermissionDeniedError(
        "names are shown for the token of an administrator, and no entry with the role admin in "
        "--identities-file has a token");
  }
  if (!options.plaintext_tokens && !IsOnHost(request.peer)) {
    return absl::PermissionDeniedError(
        "names need an administrator's token, which must not cross a network in clear text: open "
        "this page through a tunnel (kubectl port-forward, ssh -L), or start the store with "
        "--plaintext-tokens on");
  }
  const std::string* const header = request.Header("authorization");
  if (header == nullptr) return absl::UnauthenticatedError("names need an administrator's token");
  Credentials credentials;
  credentials.token = BearerToken(*header);
  const absl::StatusOr<Identity> caller = options.identities->Identify(credentials);
  if (!caller.ok()) return caller.status();
  if (caller->role == Role::kAdmin) return absl::OkStatus();
  return absl::PermissionDeniedError("this token is not an administrator's");
}

HttpPage FleetPage(const FleetPageOptions& options) {
  HttpPage page;
  page.content_type = "application/json";
  page.check = [options](const HttpRequest& request) { return CheckFleetReader(options, request); };
  page.make = [options] {
    // Words are shown to an administrator's token only.
    const bool with_words = options.fleet->shows_words() && !options.identities->accepts_anyone();
    return FleetText(options.store, *options.fleet, with_words);
  };
  return page;
}

}  // namespace hearth
