package consul

import (
	"fmt"
	"strings"

	"github.com/graylane/graylane/registry"
)

// Consul's limits for the metadata of a service
// (https://developer.hashicorp.com/consul/docs/services/configuration/services-configuration-reference#meta).
const (
	maxPairs    = 64
	maxKeyLen   = 128
	maxValueLen = 512
	reserved    = "consul-"
)

// checkMetadata reports what Consul would refuse, and by which rule.
func checkMetadata(metadata map[string]string) error {
	if err := registry.ValidateMetadata(metadata); err != nil {
		return err
	}
	if n := len(metadata); n > maxPairs {
		return &registry.InvalidError{Field: "Metadata", Value: fmt.Sprintf("%d pairs", n),
			Reason: fmt.Sprintf("expected at most %d pairs for Consul", maxPairs)}
	}
	for k, v := range metadata {
		reason := ""
		switch {
		case len(k) > maxKeyLen:
			reason = fmt.Sprintf("expected a key of at most %d bytes for Consul, got %d", maxKeyLen, len(k))
		case strings.ContainsFunc(k, notKeyRune):
			reason = "expected a key of A-Z a-z 0-9 - _ for Consul"
		case strings.HasPrefix(k, reserved):
			reason = "expected a key without the prefix " + reserved + ", which Consul reserves"
		case len(v) > maxValueLen:
			reason = fmt.Sprintf("expected a value of at most %d bytes for Consul, got %d", maxValueLen, len(v))
		}
		if reason != "" {
			return &registry.InvalidError{Field: "Metadata", Value: k, Reason: reason}
		}
	}
	return nil
}

func notKeyRune(r rune) bool {
	return (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '_'
}
