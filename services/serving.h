// The part of main that both servers share: listen, say where, wait for a stop signal, drain. On
// SIGHUP the files of `access` are read again.
//
// Thread safety: called from main, which it blocks.
#ifndef HEARTH_SERVICES_SERVING_H_
#define HEARTH_SERVICES_SERVING_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "services/call_gate.h"
#include "services/flags.h"
#include "services/metrics.h"
#include "services/server_access.h"
#include "services/server_runner.h"

namespace hearth {

// Returns after a drain with OK, or with the reason why the server could not start. `flush` is
// called when no call is running any more.
absl::Status Serve(const ServerFlags& flags, const std::vector<NamedService>& services,
                   CallGate* gate, Metrics* metrics, const ServerAccess& access,
                   const std::function<void(absl::Time deadline)>& flush);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_H_
