#include "services/serving/http_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// Pages are about 100 KiB.
constexpr uint64_t kBudgetBytes = uint64_t{8} << 20;

// Scrapers, and a few people: none of them is slow, or sends anything.
HttpLimits PageLimits() {
  HttpLimits limits;
  limits.connections = 64;
  limits.header_time = absl::Seconds(1);
  limits.request_time = absl::Seconds(1);
  limits.body_bytes = 0;
  return limits;
}

void Answer(const std::map<std::string, HttpPage>& pages, const HttpRequest& request,
            HttpAnswer* answer) {
  if (request.method != "GET" && request.method != "HEAD") {
    return answer->Send(405, PageHeaders("text/plain"), "GET and HEAD only\n");
  }
  const auto page = pages.find(request.path);
  if (page == pages.end()) return answer->Send(404, PageHeaders("text/plain"), "no such page\n");
  answer->Send(200, PageHeaders(page->second.content_type), page->second.make());
}

}  // namespace

HttpHeaders PageHeaders(const std::string& content_type) {
  return {{"Content-Type", content_type},
          {"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Content-Security-Policy",
           "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
           "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
           "frame-ancestors 'none'"}};
}

absl::StatusOr<std::unique_ptr<HttpServer>> ServePages(const std::string& address,
                                                       std::vector<std::string> hosts,
                                                       std::map<std::string, HttpPage> pages) {
  HttpServer::Options options;
  options.listen = address;
  options.limits = PageLimits();
  options.budget_bytes = kBudgetBytes;
  options.hosts = std::move(hosts);
  options.hosts_flag = "--metrics-hosts";
  auto server = HttpServer::Start(
      options, [pages = std::move(pages)](const HttpRequest& request,
                                          const std::shared_ptr<HttpAnswer>& answer) {
        Answer(pages, request, answer.get());
      });
  if (server.ok()) return server;
  return absl::Status(server.status().code(), absl::StrCat("metrics-", server.status().message()));
}

}  // namespace hearth
