#include "indexer/service/security/audit.h"
