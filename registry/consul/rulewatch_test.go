package consul_test

import (
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/graylane/graylane/registry/consul"
)

// pair returns what Consul answers for a key.
func pair(index uint64, data string) []*api.KVPair {
	return []*api.KVPair{{Key: rulesKey, Value: []byte(data), CreateIndex: 1, ModifyIndex: index}}
}

// Every query asks for the leader's word, and waits for 5 s once it has an index.
func TestRuleStore_Queries(t *testing.T) {
	f := newFake(t, response{index: "100", body: pair(100, "A")})
	w := watchRules(t, ruleStore(t, open(t, f.config()), rulesKey))
	w.untilData("A")
	require.Eventually(t, func() bool { return len(f.seen()) >= 2 }, patience, time.Millisecond)
	f.set(response{index: "101", body: pair(101, "B")})
	w.untilData("B")
	for n, r := range f.seen() {
		assert.True(t, r.query.Has("consistent"), n)
		assert.False(t, r.query.Has("stale"), n)
		assert.Equal(t, n > 0, r.query.Has("index"), n)
		if n > 0 {
			assert.Equal(t, "5000ms", r.query.Get("wait"))
		}
	}
}

// An index that goes backwards is asked about again, without one, before it counts.
func TestRuleStore_IndexStepsBack(t *testing.T) {
	f := newFake(t, response{index: "100", body: pair(100, "A")})
	w := watchRules(t, ruleStore(t, open(t, f.config()), rulesKey))
	w.untilData("A")
	require.Eventually(t, func() bool { return len(f.seen()) >= 2 }, patience, time.Millisecond)
	f.set(response{index: "5", body: pair(5, "B")})
	w.untilData("B")
	require.Eventually(t, func() bool { return len(f.seen()) >= 4 }, patience, time.Millisecond)
	seen := f.seen()
	assert.Equal(t, "100", seen[1].query.Get("index"))
	assert.False(t, seen[2].query.Has("index"))
	assert.Equal(t, "5", seen[3].query.Get("index"))
	f.set(response{index: "6", body: pair(6, "C")})
	w.untilData("C")
	assert.Len(t, w.errs(), 1, "B is older than A")

	// The index alone steps back: nothing is new.
	n := len(w.all())
	f.set(response{index: "2", body: pair(6, "C")})
	require.Eventually(t, func() bool { return f.seen()[len(f.seen())-1].query.Get("index") == "2" }, patience, time.Millisecond)
	assert.Len(t, w.all(), n)
}

// Answers without an index, errors, an index that never waits: a growing delay, and
// a bounded log.
func TestRuleStore_NoBusyLoop(t *testing.T) {
	for name, r := range map[string]response{
		"no index":    {body: pair(7, "A"), once: true},
		"same index":  {index: "7", body: pair(7, "A"), once: true},
		"error":       {status: 500, body: "No cluster leader"},
		"rate limit":  {status: 429, body: "slow down"},
		"not JSON":    {index: "7", body: "<html>"},
		"null":        {index: "7", body: "[null]", once: true},
		"missing key": {status: 404, index: "7", body: "", once: true},
		"not Consul":  {status: 404, body: "404 page not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t, r)
			logs := &logBuffer{}
			reg := open(t, f.config(), consul.WithRetry(20*time.Millisecond, 160*time.Millisecond),
				consul.WithLogger(slog.New(slog.NewTextHandler(logs, nil))))
			w := watchRules(t, ruleStore(t, reg, rulesKey))
			require.Eventually(t, func() bool { return len(f.seen()) >= 8 }, patience, time.Millisecond)
			w.stop()
			seen := f.seen()
			// At least three quarters of 20, 40 and 80 ms; a query with an index may come
			// at once after the one without.
			assert.Greater(t, seen[7].at.Sub(seen[0].at), 3*(20+40+80)*time.Millisecond/4)
			assert.LessOrEqual(t, logs.lines(), 1, logs.String())
			if r.status == 0 || r.index != "" {
				assert.LessOrEqual(t, len(w.docs()), 1, "the same is not yielded twice")
			} else {
				assert.Empty(t, w.docs(), "no rules are not the same as no answer")
			}
		})
	}
}

// Whatever is negotiated, queries for rules have a connection of their own each:
// one that is given up takes its connection with it.
func TestRuleStore_NoHTTP2(t *testing.T) {
	var mu sync.Mutex
	protos := map[string]string{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		protos[r.URL.Path] = r.Proto
		mu.Unlock()
		w.Header().Set("X-Consul-Index", "1")
		if r.URL.Query().Has("index") {
			<-r.Context().Done()
			return
		}
		if r.URL.Path == "/v1/kv/"+rulesKey {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, "[]")
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(func() {
		srv.CloseClientConnections()
		srv.Close()
	})
	cfg := &api.Config{
		Address: srv.Listener.Addr().String(), Scheme: "https", Transport: api.DefaultConfig().Transport,
		TLSConfig: api.TLSConfig{CAPem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})},
	}
	r := open(t, cfg)
	assert.Nil(t, cfg.Transport.TLSClientConfig, "the configuration is not changed")
	w := watchRules(t, ruleStore(t, r, rulesKey))
	w.until(0, func(e docEvent) bool { return e.err == nil })
	d := watch(t, r, "order")
	d.untilIDs(patience)
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, "HTTP/1.1", protos["/v1/kv/"+rulesKey])
	assert.Equal(t, "HTTP/2.0", protos["/v1/health/service/order"], "otherwise this test shows nothing")
}
