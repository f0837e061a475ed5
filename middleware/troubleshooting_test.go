package middleware_test

import (
	"testing"
)

// produced are all causes on the page, with what produces and finds each.
var produced = []struct {
	symptom, cause string
	produce        func(*testing.T, row)
}{
	{"The tag stops after one hop", "The client is not wrapped", clientNotWrapped},
	{"The tag stops after one hop", "The call has another context than the request", otherContext},
	{"The tag stops after one hop", "The host is outside the system", hostOutside},
	{"The tag stops after one hop", "Something in between damages the header", damagedHeader},

	{"Gray requests land on stable instances", "The client calls an address", clientCallsAddress},
	{"Gray requests land on stable instances", "No instance has the version", noInstanceHasTheVersion},
	{"Gray requests land on stable instances", "The instances of the version cannot be reached", unreachable},
	{"Gray requests land on stable instances", "The instance of the version refuses what it is sent (WithRejectMisrouted)", refusesItsVersion},
	{"Gray requests land on stable instances", "The instances of the version are not enough yet", notEnoughYet},
	{"Gray requests land on stable instances", "The list of instances is old", oldList},

	{"The tag is lost in background work", "The goroutine or pool has no context of a request", poolWithoutContext},
	{"The tag is lost in background work", "The work outlives the request whose context it has", workOutlivesRequest},

	{"A tag shows up in somebody else's request", "A context was kept and is used for other requests", keptContext},
	{"A tag shows up in somebody else's request", "A header was kept and is sent without the context of a request", keptHeader},
	{"A tag shows up in somebody else's request", "The tag came from outside", tagFromOutside},

	{"Users jump between versions", "The user has no key, or another one each time", noKeyOrAnother},
	{"Users jump between versions", "Rules that belong together choose different users", differentUsers},
	{"Users jump between versions", "Gateways do not have the same rules", differentRules},
	{"Users jump between versions", "The version comes and goes", versionComesAndGoes},

	{"A gray instance gets no traffic", "It is registered without its version", registeredWithoutVersion},
	{"A gray instance gets no traffic", "The rules are not in force", rulesNotInForce},
	{"A gray instance gets no traffic", "The rules do not match", rulesDoNotMatch},
	{"A gray instance gets no traffic", "It is unhealthy", unhealthyInstance},

	{"Requests fail although stable is up", "The policy is strict", strictPolicy},
	{"Requests fail although stable is up", "Stable instances carry a version", stableCarriesVersion},
	{"Requests fail although stable is up", "The instance refuses what is not for it", refused},

	{"Requests arrive where they should not", "The caller does not choose by version", callerDoesNotChoose},
	{"Requests arrive where they should not", "Caller and instance have different policies", differentPolicies},
	{"Requests arrive where they should not", "It is a health check", healthCheck},
}
