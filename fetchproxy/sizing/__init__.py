"""What a load needs and costs: machines, memory, disk, network, requests and money. Pure.

`coefficients` is what one unit of work takes, `estimate` adds it up, `prices` is money, and
`document` writes the figures of docs/deploy/sizing.md and of its calculator.
"""
