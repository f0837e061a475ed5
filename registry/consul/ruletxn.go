package consul

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/graylane/graylane/graytag/rule"
)

var (
	// errNoRead is what a token gets that may write and not read.
	errNoRead = errors.New("the token lacks key:read: what was written cannot be seen")
	// errUnknown is a transaction without an answer, and without a way to tell.
	errUnknown = errors.New("whether it was written is not known")
)

// txn sends a transaction. An HTTP error is an [api.StatusError]; 409 is a
// transaction that was rolled back.
func (s *RuleStore) txn(ctx context.Context, ops []*api.TxnOp) (api.TxnResults, error) {
	var answer api.TxnResponse
	q := (&api.WriteOptions{}).WithContext(ctx)
	if _, err := s.r.clients.kv.Raw().Write("/v1/txn", ops, &answer, q); err != nil {
		return nil, err
	}
	return answer.Results, nil
}

// indexIn returns the index that key has after a transaction, 0 where its results
// do not tell.
func indexIn(results api.TxnResults, key string) uint64 {
	for _, r := range results {
		if r != nil && r.KV != nil && r.KV.Key == key {
			return r.KV.ModifyIndex
		}
	}
	return 0
}

// commit sends the transaction and returns the new revision.
func (w *write) commit(ctx context.Context) (uint64, error) {
	ops := w.ops()
	results, err := w.s.txn(ctx, ops)
	if err == nil {
		if revision := indexIn(results, w.s.key); revision > 0 {
			return revision, nil
		}
		return 0, errNoRead
	}
	if !definite(err) {
		return w.settle(ctx, err)
	}
	return 0, w.refused(ctx, err)
}

// definite tells whether an error says that nothing was written.
func definite(err error) bool {
	switch code := statusCode(err); {
	case code >= 400 && code < 500:
		return true
	case code > 0:
		return strings.Contains(err.Error(), "No cluster leader")
	}
	return unsent(err)
}

// settle looks what became of a transaction whose answer was lost: a leader may
// have been lost, or a connection.
func (w *write) settle(ctx context.Context, cause error) (uint64, error) {
	last := w.last()
	retry := backoff{low: 50 * time.Millisecond, high: time.Second}
	for {
		n, err := w.s.read(ctx, w.s.noteKey(last.at))
		switch {
		case err == nil && n != nil && decodeNote(n.Value).Writer == last.note.Writer:
			return n.ModifyIndex, nil
		case err == nil && statusCode(cause) > 0:
			return 0, cause // Consul had done with it
		case err == nil:
			return 0, fmt.Errorf("%w (%w)", cause, errUnknown) // it may still be on its way
		}
		if !sleep(ctx, retry.next()) {
			return 0, fmt.Errorf("%w (%w)", cause, errUnknown)
		}
	}
}

// limitError says that the servers take smaller transactions.
type limitError struct {
	limit int // in bytes
	err   error
}

func (e *limitError) Error() string { return e.err.Error() }

func (e *limitError) Unwrap() error { return e.err }

var (
	bodyLimit  = regexp.MustCompile(`max size: (\d+) bytes`)
	valueLimit = regexp.MustCompile(`> (\d+) bytes\)`)
)

// refused translates what Consul said against a transaction.
func (w *write) refused(ctx context.Context, err error) error {
	var status api.StatusError
	if !errors.As(err, &status) {
		return err
	}
	switch status.Code {
	case http.StatusRequestEntityTooLarge:
		if m := bodyLimit.FindStringSubmatch(status.Body); m != nil {
			if limit, e := strconv.Atoi(m[1]); e == nil {
				return &limitError{limit, err}
			}
		}
		if m := valueLimit.FindStringSubmatch(status.Body); m != nil {
			if limit, e := strconv.Atoi(m[1]); e == nil {
				return &rule.TooLargeError{Size: len(w.last().value), Limit: limit}
			}
		}
	case http.StatusConflict:
		var answer api.TxnResponse
		if json.Unmarshal([]byte(status.Body), &answer) != nil || len(answer.Errors) == 0 {
			return err
		}
		current, readErr := w.s.read(ctx, w.s.key)
		if now := revisionOf(current); readErr == nil && now != w.ifRevision {
			return conflict(now, w.ifRevision)
		}
		what := ""
		for _, e := range answer.Errors {
			if e != nil {
				what = e.What
				if raced(what) { // though the key does not show it any more
					return fmt.Errorf("%w: %s", rule.ErrConflict, what)
				}
			}
		}
		return fmt.Errorf("the transaction was rolled back: %s", what)
	}
	return err
}

// raced tells whether an operation failed because another writer came first.
func raced(what string) bool {
	return strings.HasPrefix(what, "failed to set key") ||
		strings.HasPrefix(what, "failed index check") || strings.HasPrefix(what, "failed to check index")
}

func conflict(current, expected uint64) error {
	return fmt.Errorf("%w: it is at %d, not at %d", rule.ErrConflict, current, expected)
}
