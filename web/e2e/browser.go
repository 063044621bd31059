// Package e2e drives the pages in a real browser. This file is the only one
// that knows the browser library; the tests read as what a person does.
package e2e

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// patience bounds every wait for the browser.
const patience = 20 * time.Second

// chromium is where the browser is looked for, in this order.
var chromium = []string{os.Getenv("CHROMIUM"), "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"}

// Browser is one tab of a browser of its own, closed with its test.
type Browser struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	problems []string // what the browser's console complained of, scripts' exceptions among it
	hosts    map[string]bool
}

// Open starts a browser, or skips the test where none is installed.
func Open(t testing.TB) *Browser {
	t.Helper()
	path := installed()
	if path == "" {
		t.Skip("no Chromium: run `make deps`, or set CHROMIUM to its path")
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(),
		chromedp.ExecPath(path), chromedp.Headless, chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1400, 1000),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-background-networking", true),
		chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-sync", true),
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.Flag("hide-scrollbars", true))
	b := &Browser{t: t, hosts: map[string]bool{}}
	ctx, closeTab := chromedp.NewContext(alloc, chromedp.WithListener(b.hear))
	t.Cleanup(func() {
		closeTab()
		stop()
	})
	b.ctx = ctx
	return b
}

func installed() string {
	for _, path := range chromium {
		if _, err := os.Stat(path); path != "" && err == nil {
			return path
		}
	}
	return ""
}

// hear keeps what the page complained of and whom it asked.
func (b *Browser) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *log.EventEntryAdded:
		// A 4xx answer is logged as an error of the network; pages are asked for
		// wrong input on purpose.
		if e.Entry.Source != "network" {
			b.problems = append(b.problems, e.Entry.Text)
		}
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, e.ExceptionDetails.Text+" "+e.ExceptionDetails.URL)
	case *network.EventRequestWillBeSent:
		if u, err := url.Parse(e.Request.URL); err == nil && u.Scheme != "data" && u.Scheme != "about" {
			b.hosts[u.Host] = true
		}
	}
}

// Problems is what the console said so far: refused by the content policy, or
// thrown by a script.
func (b *Browser) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.problems...)
}

// Hosts is every host that was asked for anything.
func (b *Browser) Hosts() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for h := range b.hosts {
		all = append(all, h)
	}
	return all
}

// do runs steps within the patience.
func (b *Browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	require.NoError(b.t, b.within(func(ctx context.Context) error { return chromedp.Do(ctx, steps...) }))
}

// within bounds one exchange. The first one starts the browser and must not be
// bounded by a context that ends: its end would close the tab.
func (b *Browser) within(f func(context.Context) error) error {
	if chromedp.FromContext(b.ctx).Target == nil {
		if err := chromedp.Do(b.ctx); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	return f(ctx)
}

// Go opens an address and waits until it is loaded.
func (b *Browser) Go(address string) {
	b.t.Helper()
	b.do(chromedp.Navigate(address))
}

// Wait waits until a script's expression is true, through navigations.
func (b *Browser) Wait(expression string) {
	b.t.Helper()
	err := b.within(func(ctx context.Context) error {
		for {
			// A navigation ends a poll; a poll that is left behind never ends.
			attempt, cancel := context.WithTimeout(ctx, patience/8)
			_, err := chromedp.Run(attempt, chromedp.Poll[bool]("Boolean("+expression+")"))
			cancel()
			if err == nil || ctx.Err() != nil {
				return err
			}
		}
	})
	require.NoError(b.t, err, "waiting for %s at %s", expression, b.Address())
}

// Eval returns the value of a script's expression; a promise is awaited.
func Eval[T any](b *Browser, expression string) T {
	b.t.Helper()
	var v T
	err := b.within(func(ctx context.Context) (err error) {
		v, err = chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
		return err
	})
	require.NoError(b.t, err, expression)
	return v
}

// Text is the text of the first element that a selector matches.
func (b *Browser) Text(selector string) string {
	b.t.Helper()
	var s string
	require.NoError(b.t, b.within(func(ctx context.Context) (err error) {
		s, err = chromedp.Run(ctx, chromedp.TextContent(chromedp.CSS(selector)))
		return err
	}))
	return s
}

// Fill replaces what stands in a field by typing.
func (b *Browser) Fill(selector, text string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		all := input.DispatchKeyEventParams{Type: input.DispatchKeyEventTypeKeyDown, Key: "a", Modifiers: ctrl, Commands: []string{"selectAll"}}
		_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, all)
		return err
	}))
	b.Type(text)
}

// Choose picks an option of a select, as a person does.
func (b *Browser) Choose(selector, value string) {
	b.t.Helper()
	Eval[bool](b, `(() => { const s = document.querySelector(`+quoted(selector)+`); s.value = `+quoted(value)+
		`; s.dispatchEvent(new Event("input", {bubbles: true})); return s.dispatchEvent(new Event("change", {bubbles: true})) })()`)
}

// Click clicks the first element that a selector matches.
func (b *Browser) Click(selector string) {
	b.t.Helper()
	b.do(chromedp.Click(chromedp.CSS(selector)))
}

// Follow clicks and waits for the page that this leads to.
func (b *Browser) Follow(selector string) {
	b.t.Helper()
	require.NoError(b.t, b.within(func(ctx context.Context) error {
		_, err := chromedp.RunResponse(ctx, chromedp.Click(chromedp.CSS(selector)))
		return err
	}))
}

// Modifier keys, as Press takes them.
const (
	ctrl  = 2
	shift = 8
)

// Type presses one key after another.
func (b *Browser) Type(text string) {
	b.t.Helper()
	for _, r := range text {
		b.Press(string(r), 0)
	}
}

// Press presses one key where the focus is, as a keyboard does: a key that the
// page takes for itself leaves no character.
func (b *Browser) Press(key string, modifiers int64) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		down := *kb.Encode([]rune(key)[0])[0]
		down.Modifiers |= modifiers
		if k := kb.Keys[[]rune(key)[0]]; k != nil && k.Print {
			down.Text, down.UnmodifiedText = k.Text, k.Unmodified
		}
		up := down
		up.Type, up.Text = input.DispatchKeyEventTypeKeyUp, ""
		if _, err := cdp.Call(ctx, t, input.DispatchKeyEvent, down); err != nil {
			return err
		}
		_, err := cdp.Call(ctx, t, input.DispatchKeyEvent, up)
		return err
	}))
}

// Address is the page's address.
func (b *Browser) Address() string {
	b.t.Helper()
	var s string
	require.NoError(b.t, b.within(func(ctx context.Context) (err error) {
		s, err = chromedp.Run(ctx, chromedp.Location())
		return err
	}))
	return s
}

// Size sets the window.
func (b *Browser) Size(width, height int64) {
	b.t.Helper()
	b.do(chromedp.EmulateViewport(width, height))
}

// Prefer sets media features: "prefers-color-scheme" to "dark".
func (b *Browser) Prefer(name, value string) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: name, Value: value}},
		})
		return err
	}))
}

// Scripts switches the scripts of pages on or off.
func (b *Browser) Scripts(on bool) {
	b.t.Helper()
	b.do(chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !on})
		return err
	}))
}

// Shot keeps a picture of the whole page in a folder, where one is named by
// MEMPLAN_SHOTS.
func (b *Browser) Shot(name string) {
	b.t.Helper()
	dir := os.Getenv("MEMPLAN_SHOTS")
	if dir == "" {
		return
	}
	var png []byte
	require.NoError(b.t, b.within(func(ctx context.Context) (err error) {
		png, err = chromedp.Run(ctx, chromedp.FullScreenshot(100))
		return err
	}))
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// quoted is a text as a script's literal.
func quoted(s string) string { return strconv.Quote(s) }
