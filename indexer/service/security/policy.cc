#include "indexer/service/security/policy.h"
