// Package web serves memplan's pages. A page's whole state is its URL: the same
// address gives the same page with or without scripts, from a link, a form or
// curl. Scripts only save a reload: they fetch the part of the page that
// changed, which is rendered by the same code.
//
// What a form may say, its allowed values, help and defaults come from package
// wire; figures come from package planner. This package decides where things
// stand on the page and how a number is printed, and nothing else.
package web

//go:generate go tool templ generate
