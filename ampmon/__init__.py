"""ampmon"""
