package wire_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/netguard"
	"tendril.dev/lib/nostr"
	"tendril.dev/services/relayconn/wire"
)

// TestNegentropy speaks NIP-77 with a relay that writes down what it hears, and answers at last
// with messages that are too large, which are passed over.
func TestNegentropy(t *testing.T) {
	t.Parallel()
	heard := make(chan string, 10)
	url := serve(t, func(ctx context.Context, ws *websocket.Conn) {
		for range 3 {
			_, data, err := ws.Read(ctx)
			if err != nil {
				return
			}
			heard <- string(data)
		}
		for _, head := range []string{`["NEG-MSG","n1","`, `["NEG-MSG","n\\u0031","`, `["NEG-MSG","` + strings.Repeat("n", 65) + `","`, `["NEG-ERR","n1","`} {
			if err := ws.Write(ctx, websocket.MessageText, []byte(head+strings.Repeat("6", 2000)+`"]`)); err != nil {
				return
			}
		}
		_ = ws.Write(ctx, websocket.MessageText, fmt.Appendf(nil, `["NEG-MSG","n1","61%s"]`, strings.Repeat("ff", 400)))
		<-ctx.Done()
	})
	conn, err := wire.Dial(t.Context(), netguard.New(netguard.Options{AllowPrivate: true}), url, 1000)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	since := nostr.Timestamp(7)
	if err := errors.Join(
		conn.NegOpen(t.Context(), "n1", nostr.Filter{Since: &since, Tags: nostr.TagMap{"e": {"x\"y"}}}, []byte{0x61, 0}),
		conn.NegMsg(t.Context(), "n1", []byte{0x61, 0xab}),
		conn.NegClose(t.Context(), "n1"),
	); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`["NEG-OPEN","n1",{"since":7,"#e":["x\"y"]},"6100"]`, `["NEG-MSG","n1","61ab"]`, `["NEG-CLOSE","n1"]`,
	} {
		if got := <-heard; got != want {
			t.Errorf("said %s, want %s", got, want)
		}
	}
	var got []wire.Message
	enough := errors.New("enough")
	err = conn.Read(t.Context(), func(m wire.Message) error {
		if got = append(got, m); len(got) == 1 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	if m := got[0]; m.Kind != wire.NegMsg || m.Sub != "n1" || !bytes.Equal(m.Frame, append([]byte{0x61}, bytes.Repeat([]byte{0xff}, 400)...)) {
		t.Errorf("a message that is not came as %.100v", m)
	}
}
