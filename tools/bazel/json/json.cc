#define KVATLAS_JSON_TEMPLATE template
#include <nlohmann/json.hpp>
