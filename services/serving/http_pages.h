// Serves a few read-only pages over HTTP, made for each request.
//
// GET and HEAD only; any other method or path is an error. Pages must not be framed or cached, and
// load nothing from elsewhere. Host must be an address, localhost, the host of the server's own
// address, or in a list (HostRule), so that a page of another site cannot read them.
// Thread safety: pages are made on the server's thread, one at a time.
// Ownership: the data that pages read must outlive the server.
#ifndef HEARTH_SERVICES_SERVING_HTTP_PAGES_H_
#define HEARTH_SERVICES_SERVING_HTTP_PAGES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/serving/http/http_server.h"

namespace hearth {

struct HttpPage {
  std::string content_type;
  std::function<std::string()> make;
};

// The headers of a page that must not be framed or kept, and loads nothing from elsewhere.
HttpHeaders PageHeaders(const std::string& content_type);

// Serves on "host:port"; port 0 lets the system choose. `hosts`: more names that Host may have;
// "*": all. kUnavailable names the address.
absl::StatusOr<std::unique_ptr<HttpServer>> ServePages(const std::string& address,
                                                       std::vector<std::string> hosts,
                                                       std::map<std::string, HttpPage> pages);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_PAGES_H_
