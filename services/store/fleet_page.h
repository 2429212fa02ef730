// The page /fleet.json of a store: the names of workers, models and tenants, and first words of
// prompts, for the status page.
//
// /status.json has no names and is open to everyone. /fleet.json is open only if the server accepts
// anyone; otherwise it needs an administrator's token. Thread safety: any thread. Ownership: what
// the options name must outlive the page.
#ifndef HEARTH_SERVICES_STORE_FLEET_PAGE_H_
#define HEARTH_SERVICES_STORE_FLEET_PAGE_H_

#include "absl/status/status.h"
#include "cache_store/store/store_admin.h"
#include "services/serving/access/identity.h"
#include "services/serving/http/http_answer.h"
#include "services/serving/metrics.h"
#include "services/store/fleet_table.h"

namespace hearth {

struct FleetPageOptions {
  StoreAdmin* store = nullptr;
  const FleetTable* fleet = nullptr;
  Identities* identities = nullptr;
  // accept tokens in clear text from other hosts
  bool plaintext_tokens = false;
};

// Returns OK if the request may see names. kUnauthenticated: an administrator's token is missing or
// wrong. kPermissionDenied: another identity's token, no entry of the identities file has a token,
// or a token would cross a network in clear text.
absl::Status CheckFleetReader(const FleetPageOptions& options, const HttpRequest& request);

HttpPage FleetPage(const FleetPageOptions& options);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_FLEET_PAGE_H_
