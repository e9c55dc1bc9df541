// Finds the route of a request by its method and target.
//
// *Threads*: immutable once the server runs.

#ifndef KVATLAS_INDEXER_NET_HTTP_ROUTER_H_
#define KVATLAS_INDEXER_NET_HTTP_ROUTER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "indexer/net/http_server.h"

namespace kvatlas {

// Nothing, if a '%' is not followed by two digits.
std::optional<std::string> PercentDecode(std::string_view text, bool plus_is_blank);

class HttpRouter {
 public:
  // The routes of one path by method.
  using Methods = std::map<std::string, HttpRoute, std::less<>>;

  void Add(HttpRoute route);

  // The path itself, or else the nearest "/*" above it; null: no such path.
  const Methods* Find(std::string_view path) const;

  // Whether a GET of `path`, undecoded, is of a vital route.
  bool IsVital(std::string_view path) const { return vital_.contains(path); }
  bool has_vital() const { return !vital_.empty(); }

  // "GET,HEAD".
  static std::string Allow(const Methods& methods);

 private:
  std::map<std::string, Methods, std::less<>> routes_;
  std::set<std::string, std::less<>> vital_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_ROUTER_H_
