// Found before the system's header of that name, which it includes: the templates behind nlohmann::json and ordered_json are
// instantiated once, in json.cc, and not in each of a hundred files. That takes a third from the time to compile such a file, and
// four fifths from its object.
//
// What a file uses beyond these (a stream to parse, values of its own types) is instantiated there as ever.

#ifndef KVATLAS_TOOLS_BAZEL_JSON_NLOHMANN_JSON_HPP_
#define KVATLAS_TOOLS_BAZEL_JSON_NLOHMANN_JSON_HPP_

#include_next <nlohmann/json.hpp>

// `template` where the instances are made.
#ifndef KVATLAS_JSON_TEMPLATE
#define KVATLAS_JSON_TEMPLATE extern template
#endif

#define KVATLAS_JSON_READ(Json, Adapter)                                                    \
  KVATLAS_JSON_TEMPLATE class nlohmann::detail::lexer<Json, Adapter>;                       \
  KVATLAS_JSON_TEMPLATE class nlohmann::detail::parser<Json, Adapter>;                      \
  KVATLAS_JSON_TEMPLATE bool nlohmann::detail::parser<Json, Adapter>::sax_parse_internal(   \
      nlohmann::detail::json_sax_dom_parser<Json>*);                                        \
  KVATLAS_JSON_TEMPLATE bool nlohmann::detail::parser<Json, Adapter>::sax_parse_internal(   \
      nlohmann::detail::json_sax_dom_callback_parser<Json>*)

#define KVATLAS_JSON(Json)                                                              \
  KVATLAS_JSON_TEMPLATE class Json;                                                     \
  KVATLAS_JSON_TEMPLATE class nlohmann::detail::serializer<Json>;                       \
  KVATLAS_JSON_TEMPLATE class nlohmann::detail::json_sax_dom_parser<Json>;              \
  KVATLAS_JSON_TEMPLATE class nlohmann::detail::json_sax_dom_callback_parser<Json>;     \
  KVATLAS_JSON_READ(Json, nlohmann::detail::iterator_input_adapter<const char*>);       \
  KVATLAS_JSON_READ(Json, nlohmann::detail::iterator_input_adapter<std::string::const_iterator>)

KVATLAS_JSON(nlohmann::basic_json<>);
KVATLAS_JSON(nlohmann::basic_json<nlohmann::ordered_map>);

#undef KVATLAS_JSON
#undef KVATLAS_JSON_READ

#endif  // KVATLAS_TOOLS_BAZEL_JSON_NLOHMANN_JSON_HPP_
