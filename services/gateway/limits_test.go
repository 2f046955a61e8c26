package gateway

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"tendril.dev/lib/nostr"
	"tendril.dev/proto"
	"tendril.dev/services/gateway/relay"
	"tendril.dev/test/fixture"
)

// TestIngestLearnsWhoSubmitted: the client key goes with the candidate.
func TestIngestLearnsWhoSubmitted(t *testing.T) {
	t.Parallel()
	sys := start(t, "--trusted-proxies=127.0.0.0/8")
	heard, err := sys.Bus.Conn.SubscribeSync(proto.LaneUser.Subject())
	must(t, err)
	c := sys.from(t, "6.6.6.6, 2001:db8:1:2::9")
	c.hears(`["OK","`, `["EVENT",%s]`, signed(t, nostr.Event{Kind: 1}))
	msg, err := heard.NextMsg(patience)
	if err != nil || msg.Header.Get(proto.HeaderClient) != "2001:db8:1:2::/64" {
		t.Errorf("%v, %v", msg, err)
	}
}

func TestSubscriptionsOfAClient(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.MaxOpenFiltersPerIP = 3 }, "--trusted-proxies=127.0.0.1")
	first, second, other := sys.from(t, "192.0.2.1"), sys.from(t, "192.0.2.1"), sys.from(t, "192.0.2.2")
	for i, c := range []*client{first, first, second} {
		c.hears(`["EOSE","`, `["REQ","%d",{"limit":0}]`, i)
	}
	second.hears(`["CLOSED","x","rate-limited: at most 3 open filters from one address; close some subscriptions"]`, `["REQ","x",{"limit":0}]`)
	other.hears(`["CLOSED","x","rate-limited: at most 3 open filters`, `["REQ","x",{"limit":0},{"limit":0},{"limit":0},{"limit":0}]`)
	other.hears(`["EOSE","x"]`, `["REQ","x",{"limit":0}]`)
	first.ws.CloseNow()
	eventually(t, "what a connection held is given back", func() bool {
		second.say(`["REQ","y",{"limit":0}]`)
		got, err := second.hear()
		must(t, err)
		return got == `["EOSE","y"]`
	})
}

func TestFiltersOfAClient(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.ClientBytes, b.ClientBytesPerIP, b.MaxMessageBytes = 1<<20, 1<<20, 300_000 },
		"--trusted-proxies=127.0.0.1")
	open := func(c *client, id int, want string) {
		t.Helper()
		c.hears(fmt.Sprintf(want, id), `["REQ","%d",{"limit":0,"#t":["%s"]}]`, id, strings.Repeat("x", 250_000))
	}
	const opened = `["EOSE","%d"]`
	c := sys.from(t, "192.0.2.1")
	for id := range 4 {
		open(c, id, opened)
	}
	open(c, 4, `["CLOSED","%d","rate-limited: what this relay keeps for your address takes more than 1048576 bytes; close some subscriptions"]`)
	// Who keeps most gives it up for who keeps nothing.
	open(sys.from(t, "192.0.2.2"), 0, opened)
	if code := c.closed(); code != websocket.StatusTryAgainLater {
		t.Errorf("closed with %v", code)
	}
	// One who keeps as much as is asked for does not.
	for n := range 3 {
		open(sys.from(t, fmt.Sprintf("192.0.2.%d", 3+n)), 0, opened)
	}
	open(sys.from(t, "192.0.2.9"), 0, `["CLOSED","%d","rate-limited: this relay does and keeps as much as it can for all clients; try again later"]`)
}

// TestSlowReaderIsDisconnected by the bytes of the events that wait for it.
func TestSlowReaderIsDisconnected(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.ClientBytesPerIP = 1 << 20 }, "--trusted-proxies=127.0.0.1")
	slow, quick := sys.from(t, "192.0.2.1"), sys.from(t, "192.0.2.2")
	for _, c := range []*client{slow, quick} {
		c.hears(`["EOSE","s"]`, `["REQ","s",{"kinds":[1621],"limit":0}]`)
	}
	// The slow one reads nothing more. The quick one gets all of it.
	for i := range 200 { // 20 MB: more than any socket takes by itself
		ev := fake(i, 1621)
		ev.Content = strings.Repeat("x", 100_000)
		ev.ID = ev.GetID()
		sys.store(t, ev)
		quick.want(`["EVENT","s",`)
	}
	if code := slow.closed(); code == websocket.StatusNormalClosure {
		t.Errorf("closed with %v", code)
	}
	if !strings.Contains(sys.metrics(t), "\nngit_websocket_slow_readers_total 1\n") {
		t.Error("the slow reader is not counted, or the quick one is too")
	}
}

// TestMessageThatDoesNotEnd: a client that stops in the middle of a message holds nothing for ever.
func TestMessageThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.MessageTime = 3 * time.Second }) // longer than it takes to send what follows
	c := sys.dial(t)
	w, err := c.ws.Writer(t.Context(), websocket.MessageText)
	must(t, err)
	if _, err := w.Write([]byte(`["REQ","s"` + strings.Repeat(" ", 40_000))); err != nil {
		t.Fatal(err)
	}
	if code := c.closed(); code != websocket.StatusPolicyViolation {
		t.Errorf("closed with %v", code)
	}
}

// TestLargeMessagesOfAClient: those that one client never ends leave room for the others'.
func TestLargeMessagesOfAClient(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.MessageTime = 10 * time.Minute }, "--trusted-proxies=127.0.0.1")
	for range 40 { // each wants 512 KiB, and one client may have 16 MiB
		w, err := sys.from(t, "192.0.2.1").ws.Writer(t.Context(), websocket.MessageText)
		must(t, err)
		if _, err := w.Write([]byte(strings.Repeat(" ", 100_000))); err != nil {
			t.Fatal(err)
		}
	}
	c := sys.from(t, "192.0.2.2")
	c.hears(`["EOSE","s"]`, `["REQ","s",{"limit":0,"#t":["%s"]}]`, strings.Repeat("x", 200_000))
	c.hears(`["OK","`, `["EVENT",%s]`, signed(t, nostr.Event{Kind: 1, Content: strings.Repeat("x", 100_000)}))
}

func TestConnectionsOfAnyKind(t *testing.T) {
	t.Parallel()
	const most = 20
	sys := startWithin(t, func(b *relay.Bounds) { b.OtherConnectionsPerIP = 0 }, fmt.Sprintf("--max-connections-per-ip=%d", most))
	// WebSockets stay, and one more than there may be is turned away with a reason.
	for range most {
		eventually(t, "a WebSocket is open", func() bool { // the connection before has not quite ended
			ws, _, err := websocket.Dial(t.Context(), "ws://"+sys.addr, nil)
			if err == nil {
				t.Cleanup(func() { ws.CloseNow() })
			}
			return err == nil
		})
	}
	c, answers := dial(t, sys.addr)
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	resp, err := http.ReadResponse(answers, nil)
	must(t, err)
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || resp.Header.Get("Access-Control-Allow-Headers") != allowedHeaders ||
		string(body) != "rate-limited: too many connections from your address; close some first\n" {
		t.Errorf("%s %v %q", resp.Status, resp.Header, body)
	}
}

// TestIdleConnectionsMakeRoom: when all connections are taken, or all of a client, the one that has
// been idle longest is closed.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		setting string
		set     func(*relay.Bounds)
	}{
		{"max-connections", func(b *relay.Bounds) { b.OtherConnections = 2 }},
		{"max-connections-per-ip", func(b *relay.Bounds) { b.OtherConnectionsPerIP = 2 }},
	} {
		t.Run(of.setting, func(t *testing.T) {
			t.Parallel()
			idleMakeRoom(t, startWithin(t, of.set, "--"+of.setting+"=3"))
		})
	}
}

func idleMakeRoom(t *testing.T, sys *system) {
	socket := sys.dial(t)
	for range 20 {
		// A connection whose answer has just been read is idle a moment later.
		eventually(t, "there is room", func() bool {
			c, answers := dial(t, sys.addr)
			fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err := http.ReadResponse(answers, nil)
			return err == nil && resp.StatusCode == http.StatusOK
		})
	}
	socket.hears(`["EOSE","s"]`, `["REQ","s",{"limit":0}]`)
}

// TestSlowRequestsMakeRoom: where all connections have a request that does not end, the client with
// most loses one to a newcomer. A request to manage the relay has a time for the whole.
func TestSlowRequestsMakeRoom(t *testing.T) {
	t.Parallel()
	const most = 5
	arrived := make(chan bool, most)
	worker := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- true
		<-r.Context().Done()
	}))
	t.Cleanup(worker.Close)
	sys := startWithin(t, func(b *relay.Bounds) { b.OtherConnections, b.EventTimeout = 2, time.Second },
		"--max-connections=3", "--shutdown-wait=1s")
	sys.shards.at(worker.Listener.Addr().String())
	_, _, npub := repository(t, "r")
	for range most {
		c, _ := dial(t, sys.addr)
		fmt.Fprintf(c, "GET /%s/r.git/info/refs?service=git-upload-pack HTTP/1.1\r\nHost: x\r\n\r\n", npub)
		fixture.Receive(t, "the request is under way", arrived)
	}
	newcomer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	c, err := newcomer.DialContext(t.Context(), "tcp", sys.addr)
	must(t, err)
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	fmt.Fprint(c, "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/nostr+json+rpc\r\nContent-Length: 9\r\n\r\n{")
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != http.StatusBadRequest {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestProxiesAreNoClients: what comes through a trusted proxy is not bounded as if it were one
// client.
func TestProxiesAreNoClients(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.OtherConnectionsPerIP = 0 }, "--max-connections-per-ip=2", "--trusted-proxies=127.0.0.1")
	for n := range 5 {
		c := sys.from(t, fmt.Sprintf("192.0.2.%d", n+1))
		c.hears(`["EOSE","s"]`, `["REQ","s",{"limit":0}]`)
	}
}

// TestAnswersThatNobodyReads: a client that asks again and again and reads no answer is cut off.
func TestAnswersThatNobodyReads(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.AnswerStall = time.Second }, "--max-connections-per-ip=1")
	sys.dial(t).say(`["CLOSE","x"]`) // so that there may be no further WebSocket
	for _, request := range []string{
		"OPTIONS / HTTP/1.1\r\nHost: x\r\n\r\n",
		"HEAD /icon.png HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
	} {
		c, _ := dial(t, sys.addr)
		var err error
		for err == nil {
			_, err = io.WriteString(c, request)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: not cut off", request)
		}
	}
}

// TestPagesAreBoundedByClient: what costs something to make is made only so often for one client;
// what the operator's tools ask, and what is made already, is not counted.
func TestPagesAreBoundedByClient(t *testing.T) {
	t.Parallel()
	sys := startWithin(t, func(b *relay.Bounds) { b.PagesPerMinute = 3 })
	refused := map[string]int{}
	for range 8 {
		for _, path := range []string{"/", "/metrics", "/nothing"} {
			if resp, _ := sys.ask(t, "GET", path, "text/html"); resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "" {
				refused[path]++
			}
		}
		for path, accept := range map[string]string{"/healthz": "", "/": "application/nostr+json", "/icon.png": ""} {
			if resp, _ := sys.ask(t, "GET", path, accept); resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %s", path, resp.Status)
			}
		}
	}
	if len(refused) < 3 {
		t.Errorf("refused: %v", refused)
	}
}

// TestGitShowsWhyItIsRefused: a real git prints the reason.
func TestGitShowsWhyItIsRefused(t *testing.T) {
	t.Parallel()
	worker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		http.NotFound(w, r)
	}))
	defer worker.Close()
	sys := startWithin(t, func(b *relay.Bounds) { b.GitRequestsPerMinute = 1 }, "--trusted-proxies=127.0.0.1")
	sys.shards.at(worker.Listener.Addr().String())
	_, _, npub := repository(t, "r")
	url := "http://" + sys.addr + "/" + npub + "/r.git"
	git := func(client string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "http.extraHeader=X-Forwarded-For: " + client}, args...)...)
		cmd.Dir = t.TempDir()
		cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_NOSYSTEM=1", "HOME="+cmd.Dir)
		out, err := cmd.CombinedOutput()
		if err == nil {
			t.Errorf("git %v succeeded", args)
		}
		return string(out)
	}
	git("192.0.2.1", "ls-remote", url)
	if out := git("192.0.2.1", "ls-remote", url); !strings.Contains(out, "remote: rate-limited: at most 1 requests for git data a minute from one address; try again in ") {
		t.Errorf("git says: %s", out)
	}
	// What git has used up is no page's, the refusals are counted, and the log has one line of them.
	git("192.0.2.1", "ls-remote", url)
	page, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+sys.addr+"/", nil)
	must(t, err)
	page.Header.Set("X-Forwarded-For", "192.0.2.1")
	resp, err := http.DefaultClient.Do(page)
	must(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("a page after git's requests: %s", resp.Status)
	}
	counts := map[string]float64{}
	families, err := sys.Metrics.Gather()
	must(t, err)
	for _, family := range families {
		if family.GetName() == "ngit_http_requests_total" {
			for _, m := range family.GetMetric() {
				counts[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	if counts["git 429"] != 2 || counts["page 200"] != 1 || counts["git 404"] != 1 || len(sys.met) != 1 || <-sys.met != "git" {
		t.Errorf("counted %v; %d lines more", counts, len(sys.met))
	}
}

// TestAProxyThatIsNotTrusted: the operator is warned once that all its clients share one allowance.
func TestAProxyThatIsNotTrusted(t *testing.T) {
	t.Parallel()
	sys := start(t)
	for range 3 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+sys.addr+"/", nil)
		must(t, err)
		req.Header.Set("X-Forwarded-For", "192.0.2.1")
		resp, err := http.DefaultClient.Do(req)
		must(t, err)
		resp.Body.Close()
	}
	if n := sys.warned("NGIT_TRUSTED_PROXIES"); n != 1 {
		t.Errorf("warned %d times", n)
	}
}
