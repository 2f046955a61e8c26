package world

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/coder/websocket"

	"tendril.dev/lib/child"
	"tendril.dev/test/fixture"
)

// Browser is a page in a Chromium without a window, which is told what to do by the DevTools
// protocol.
type Browser struct {
	t       testing.TB
	conn    *websocket.Conn
	session string
	last    atomic.Int64

	mu         sync.Mutex
	answers    map[int64]chan devtools
	loaded     chan struct{}
	complaints []string // of the page: refused by its policy, failed in its script
}

// devtools is a message of the protocol.
type devtools struct {
	ID      int64           `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// NewBrowser starts a Chromium. Where this machine has none the test is skipped.
func NewBrowser(t testing.TB) *Browser {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("this machine has no chromium to look at pages with")
	}
	cmd := exec.CommandContext(t.Context(), program, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
		"--remote-debugging-port=0", "--user-data-dir="+Folder(t), "about:blank")
	printed, err := cmd.StderrPipe()
	must(t, err, child.Start(cmd))
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the test's context has killed it
	address := ""
	for lines := bufio.NewScanner(printed); address == "" && lines.Scan(); {
		_, address, _ = strings.Cut(lines.Text(), "DevTools listening on ")
	}
	if address == "" {
		t.Skip("chromium does not start on this machine")
	}
	conn, _, err := websocket.Dial(t.Context(), address, nil)
	must(t, err)
	conn.SetReadLimit(64 << 20)
	b := &Browser{t: t, conn: conn, answers: map[int64]chan devtools{}, loaded: make(chan struct{}, 1)}
	go b.read()
	var target struct{ TargetID string }
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Log", "Runtime"} {
		b.do(domain+".enable", nil, nil)
	}
	return b
}

func (b *Browser) read() {
	for {
		_, data, err := b.conn.Read(context.Background())
		if err != nil {
			return
		}
		var m devtools
		if json.Unmarshal(data, &m) != nil {
			continue
		}
		b.mu.Lock()
		switch answer := b.answers[m.ID]; {
		case m.ID != 0 && answer != nil:
			answer <- m
			delete(b.answers, m.ID)
		case m.Method == "Page.loadEventFired":
			select {
			case b.loaded <- struct{}{}:
			default:
			}
		case m.Method == "Log.entryAdded", m.Method == "Runtime.exceptionThrown":
			b.complaints = append(b.complaints, string(m.Params))
		}
		b.mu.Unlock()
	}
}

// do gives one command and reads its result.
func (b *Browser) do(method string, params, result any) {
	b.t.Helper()
	given, err := json.Marshal(params)
	must(b.t, err)
	m := devtools{ID: b.last.Add(1), Session: b.session, Method: method, Params: given}
	if params == nil {
		m.Params = nil
	}
	answer := make(chan devtools, 1)
	b.mu.Lock()
	b.answers[m.ID] = answer
	b.mu.Unlock()
	data, err := json.Marshal(m)
	must(b.t, err, b.conn.Write(b.t.Context(), websocket.MessageText, data))
	got := fixture.Receive(b.t, "the answer of the browser to "+method, answer)
	if got.Error != nil {
		b.t.Fatalf("the browser does not %s: %s", method, got.Error)
	}
	if result != nil {
		must(b.t, json.Unmarshal(got.Result, result))
	}
}

// Look sets what the page is looked at with: how wide it is, in the dark or not, with scripts or
// not.
func (b *Browser) Look(width int, dark, scripts bool) {
	b.t.Helper()
	b.do("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}, nil)
	scheme := map[bool]string{true: "dark", false: "light"}[dark]
	b.do("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	}, nil)
	b.do("Emulation.setScriptExecutionDisabled", map[string]any{"value": !scripts}, nil)
}

// Open loads a page.
func (b *Browser) Open(url string) {
	b.t.Helper()
	select { // a page that was loaded before
	case <-b.loaded:
	default:
	}
	var gone struct{ ErrorText string }
	b.do("Page.navigate", map[string]any{"url": url}, &gone)
	if gone.ErrorText != "" {
		b.t.Fatalf("the browser cannot open %s: %s", url, gone.ErrorText)
	}
	fixture.Receive(b.t, "the end of loading "+url, b.loaded)
}

// Ask evaluates an expression in the page. Promises are waited for.
func (b *Browser) Ask(expression string) string {
	b.t.Helper()
	var got struct {
		Result struct{ Value any }
	}
	b.do("Runtime.evaluate", map[string]any{
		"expression": expression, "returnByValue": true, "awaitPromise": true, "userGesture": true,
	}, &got)
	return fmt.Sprint(got.Result.Value)
}

// Until waits until an expression is true in the page.
func (b *Browser) Until(what, expression string) {
	b.t.Helper()
	fixture.Await(b.t, what, func() bool { return b.Ask(expression) == "true" })
}

// Picture is what is seen of the page, as a PNG.
func (b *Browser) Picture() []byte {
	b.t.Helper()
	var got struct{ Data string }
	b.do("Page.captureScreenshot", map[string]any{"format": "png"}, &got)
	picture, err := base64.StdEncoding.DecodeString(got.Data)
	must(b.t, err)
	return picture
}

// Complaints are what the browser has found wrong with the pages since it was asked last.
func (b *Browser) Complaints() (list []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	list, b.complaints = b.complaints, nil
	return list
}
