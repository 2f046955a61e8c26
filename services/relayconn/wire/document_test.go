package wire_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"tendril.dev/lib/netguard"
	"tendril.dev/services/relayconn/wire"
)

// TestFetchDocument asks as NIP-11 says, passes over what is odd in a document, and takes neither
// endless documents nor what is no document.
func TestFetchDocument(t *testing.T) {
	t.Parallel()
	text := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/" || r.Header.Get("Accept") != "application/nostr+json" {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	client := netguard.New(netguard.Options{AllowPrivate: true}).HTTPClient()
	url := "ws" + strings.TrimPrefix(server.URL, "http")
	var want wire.Stated
	for text, want = range map[string]wire.Stated{
		`{}`: {},
		`{"name":"strfry default","supported_nips":[1,2,77],"limitation":{"max_limit":500,"max_message_length":131072,"max_subscriptions":20}}`: {Subscriptions: 20, Events: 500, Bytes: 131072},
		`{"limitation":{"max_filters":10,"max_subscriptions":2.5,"max_message_length":"many"}}`:                                                 {Filters: 10},
		`{"limitation":{"max_filters":null,"max_subscriptions":1e99,"max_limit":0}}`:                                                            {},
		`{"limitation":[1,2],"supported_nips":"all"}`:                                                                                           {},
	} {
		if got, err := wire.FetchDocument(t.Context(), client, url); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text = range []string{"", "<html>", `{"limitation":`, `{"name":"` + strings.Repeat("x", 1<<20) + `"}`} {
		if got, err := wire.FetchDocument(t.Context(), client, url); err == nil {
			t.Errorf("%.20q: %+v", text, got)
		}
	}
	text = "{}"
	for _, bad := range []string{url + "/none", server.URL, "ws://127.0.0.1:1/", "ws://[", ""} {
		if d, err := wire.FetchDocument(t.Context(), client, bad); err == nil {
			t.Errorf("%s: %+v", bad, d)
		}
	}
	if _, err := wire.FetchDocument(t.Context(), netguard.New(netguard.Options{}).HTTPClient(), url); err == nil {
		t.Error("a private address is asked")
	}
}
